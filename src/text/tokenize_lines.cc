#include "text/tokenize_lines.h"

#include <istream>
#include <ostream>

#include <nlohmann/json.hpp>

#include "text/messages.h"
#include "text/utf8.h"

namespace moesaic {

namespace {

using Json = nlohmann::ordered_json;

// Nesting that a line may have: the parser itself is not recursive, but copying and printing a value is.
constexpr int kMaxDepth = 200;

absl::StatusOr<Json> parse_line(std::string_view line) {
  if (!is_valid_utf8(line)) return absl::InvalidArgumentError("the line is not valid UTF-8");
  bool too_deep = false;
  const auto check_depth = [&](int depth, Json::parse_event_t, Json&) {
    too_deep |= depth > kMaxDepth;
    return !too_deep;
  };
  Json json;
  try {
    json = Json::parse(line, check_depth);
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(str_cat("bad JSON: ", error.what()));
  }
  if (too_deep) return absl::InvalidArgumentError(str_cat("bad JSON: nested deeper than ", kMaxDepth, " levels"));
  if (!json.is_object()) return absl::InvalidArgumentError(str_cat("expected an object, found ", json.type_name()));
  return json;
}

absl::StatusOr<Json> encode(const Json& text, const Tokenizer& tokenizer) {
  if (!text.is_string())
    return absl::InvalidArgumentError(str_cat("text: expected a string, found ", text.type_name()));
  return Json{{"ids", tokenizer.encode(text.get_ref<const std::string&>())}};
}

absl::StatusOr<Json> decode(const Json& line, const Tokenizer& tokenizer) {
  const Json& list = line.at("ids");
  if (!list.is_array()) return absl::InvalidArgumentError(str_cat("ids: expected a list, found ", list.type_name()));
  const auto flag = line.find("skip_special_tokens");
  if (flag != line.end() && !flag->is_boolean()) {
    return absl::InvalidArgumentError(
        str_cat("skip_special_tokens: expected true or false, found ", flag->type_name()));
  }
  std::vector<int32_t> ids;
  for (size_t i = 0; i < list.size(); ++i) {
    const bool is_id =
        list[i].is_number_unsigned() && list[i].get<uint64_t>() < static_cast<uint64_t>(tokenizer.size());
    if (!is_id) {
      return absl::InvalidArgumentError(
          str_cat("ids[", i, "]: expected an id in 0..", tokenizer.size() - 1, ", found ", list[i].dump()));
    }
    ids.push_back(list[i].get<int32_t>());
  }
  return Json{{"text", tokenizer.decode(ids, flag != line.end() && flag->get<bool>())}};
}

absl::StatusOr<Json> render(Json line, const ChatTemplate* chat_template) {
  if (chat_template == nullptr)
    return absl::NotFoundError("the model has no chat template: expected chat_template in tokenizer_config.json");
  if (!line.contains("tools")) line["tools"] = nullptr;
  if (!line.contains("add_generation_prompt")) line["add_generation_prompt"] = false;
  MOESAIC_ASSIGN_OR_RETURN(std::string rendered, render_messages(*chat_template, std::move(line)));
  return Json{{"rendered", std::move(rendered)}};
}

absl::StatusOr<Json> answer(std::string_view text, const Tokenizer& tokenizer, const ChatTemplate* chat_template) {
  MOESAIC_ASSIGN_OR_RETURN(Json line, parse_line(text));
  if (line.contains("text")) return encode(line["text"], tokenizer);
  if (line.contains("ids")) return decode(line, tokenizer);
  if (line.contains("messages")) return render(std::move(line), chat_template);
  return absl::InvalidArgumentError("expected one of text, ids and messages");
}

}  // namespace

std::string tokenize_line(std::string_view line, const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                          bool& failed) {
  const absl::StatusOr<Json> result = answer(line, tokenizer, chat_template);
  failed = !result.ok();
  const Json json = result.ok() ? *result : Json{{"error", str_cat(result.status().message())}};
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

int64_t tokenize_lines(std::istream& in, std::ostream& out, const Tokenizer& tokenizer,
                       const ChatTemplate* chat_template) {
  int64_t num_failed = 0;
  std::string line;
  while (std::getline(in, line)) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    bool failed = false;
    out << tokenize_line(line, tokenizer, chat_template, failed) << '\n';
    out.flush();
    num_failed += failed;
  }
  return num_failed;
}

}  // namespace moesaic
