// The reader of tokenizer.json. simdjson stays in this file; its error codes become Status at the place where they
// appear. Fields that change ids are honoured or refused; fields that do not (truncation, padding, post_processor:
// this system never adds tokens while encoding) are ignored.
#include <simdjson.h>

#include "text/tokenizer_spec.h"

namespace moesaic {

namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

constexpr size_t kMaxSplitSteps = 64;
constexpr size_t kMaxAddedTokenBytes = 4096;
// GPT-2's pattern, which ByteLevel applies itself when use_regex is true.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

absl::Status bad(std::string_view place, std::string_view message) {
  return absl::InvalidArgumentError(str_cat("tokenizer.json: ", place, ": ", message));
}

absl::Status unsupported(std::string_view place, std::string_view message) {
  return absl::UnimplementedError(str_cat("tokenizer.json: ", place, ": ", message));
}

std::string_view type_of(element value) {
  switch (value.type()) {
    case simdjson::dom::element_type::ARRAY:
      return "a list";
    case simdjson::dom::element_type::OBJECT:
      return "an object";
    case simdjson::dom::element_type::STRING:
      return "a string";
    case simdjson::dom::element_type::BOOL:
      return "a boolean";
    case simdjson::dom::element_type::NULL_VALUE:
      return "null";
    default:
      return "a number";
  }
}

// The member, or null if it is absent.
element member(object parent, std::string_view key) {
  static simdjson::dom::parser null_parser;
  static const element null = null_parser.parse(std::string_view("null")).value();
  element value;
  return parent.at_key(key).get(value) == simdjson::SUCCESS ? value : null;
}

template <typename T>
absl::Status read(element value, std::string_view place, std::string_view expected, T& out) {
  if (value.get(out) == simdjson::SUCCESS) return absl::OkStatus();
  return bad(place, str_cat("expected ", expected, ", found ", type_of(value)));
}

absl::StatusOr<bool> read_flag(object parent, std::string_view place, std::string_view key, bool absent) {
  const element value = member(parent, key);
  bool flag = absent;
  if (!value.is_null()) MOESAIC_RETURN_IF_ERROR(read(value, str_cat(place, ".", key), "true or false", flag));
  return flag;
}

absl::StatusOr<std::string_view> read_string(object parent, std::string_view place, std::string_view key) {
  std::string_view text;
  MOESAIC_RETURN_IF_ERROR(read(member(parent, key), str_cat(place, ".", key), "a string", text));
  return text;
}

absl::StatusOr<int32_t> read_id(element value, std::string_view place) {
  int64_t id = 0;
  if (value.get(id) != simdjson::SUCCESS || id < 0 || id > Vocab::kMaxId) {
    return bad(place, str_cat("expected an id in 0..", Vocab::kMaxId, ", found ",
                              value.is_int64() ? str_cat(id) : std::string(type_of(value))));
  }
  return static_cast<int32_t>(id);
}

absl::Status check_normalizer(element value) {
  if (value.is_null()) return absl::OkStatus();
  object normalizer;
  MOESAIC_RETURN_IF_ERROR(read(value, "normalizer", "null or an object", normalizer));
  MOESAIC_ASSIGN_OR_RETURN(const std::string_view type, read_string(normalizer, "normalizer", "type"));
  if (type != "Sequence") return unsupported("normalizer", str_cat("expected null or an empty Sequence, found ", type));
  array steps;
  MOESAIC_RETURN_IF_ERROR(read(member(normalizer, "normalizers"), "normalizer.normalizers", "a list", steps));
  if (steps.begin() != steps.end()) return unsupported("normalizer.normalizers", "expected an empty list");
  return absl::OkStatus();
}

absl::StatusOr<SplitBehavior> read_behavior(object step, std::string_view place) {
  MOESAIC_ASSIGN_OR_RETURN(const std::string_view name, read_string(step, place, "behavior"));
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  return unsupported(str_cat(place, ".behavior"), str_cat("unknown behaviour ", name));
}

absl::Status add_regex(std::string_view pattern, bool literal, SplitBehavior behavior, bool invert,
                       std::string_view place, PreTokenizer& out) {
  absl::StatusOr<Regex> regex = Regex::compile(pattern, literal);
  if (!regex.ok()) return annotate(regex.status(), str_cat("tokenizer.json: ", place));
  out.add_split({*std::move(regex), behavior, invert});
  return absl::OkStatus();
}

absl::Status add_split(object step, std::string_view place, PreTokenizer& out) {
  object pattern;
  MOESAIC_RETURN_IF_ERROR(
      read(member(step, "pattern"), str_cat(place, ".pattern"), "{\"Regex\": ...} or {\"String\": ...}", pattern));
  const bool literal = !member(pattern, "String").is_null();
  MOESAIC_ASSIGN_OR_RETURN(const std::string_view text,
                           read_string(pattern, str_cat(place, ".pattern"), literal ? "String" : "Regex"));
  MOESAIC_ASSIGN_OR_RETURN(const SplitBehavior behavior, read_behavior(step, place));
  MOESAIC_ASSIGN_OR_RETURN(const bool invert, read_flag(step, place, "invert", false));
  return add_regex(text, literal, behavior, invert, str_cat(place, ".pattern"), out);
}

absl::Status add_byte_level(object step, std::string_view place, PreTokenizer& out) {
  MOESAIC_ASSIGN_OR_RETURN(const bool add_prefix_space, read_flag(step, place, "add_prefix_space", true));
  MOESAIC_ASSIGN_OR_RETURN(const bool use_regex, read_flag(step, place, "use_regex", true));
  if (add_prefix_space) out.add_prefix_space();
  if (!use_regex) return absl::OkStatus();
  return add_regex(kGpt2Pattern, false, SplitBehavior::kIsolated, false, place, out);
}

absl::Status read_pre_tokenizer(element value, PreTokenizer& out) {
  object top;
  MOESAIC_RETURN_IF_ERROR(read(value, "pre_tokenizer", "an object", top));
  MOESAIC_ASSIGN_OR_RETURN(const std::string_view top_type, read_string(top, "pre_tokenizer", "type"));
  std::vector<element> steps = {value};
  const bool sequence = top_type == "Sequence";
  if (sequence) {
    array list;
    MOESAIC_RETURN_IF_ERROR(read(member(top, "pretokenizers"), "pre_tokenizer.pretokenizers", "a list", list));
    steps.assign(list.begin(), list.end());
  }
  if (steps.size() > kMaxSplitSteps) {
    return bad("pre_tokenizer", str_cat("expected at most ", kMaxSplitSteps, " steps, found ", steps.size()));
  }
  bool byte_level = false;
  for (size_t i = 0; i < steps.size(); ++i) {
    const std::string place = sequence ? str_cat("pre_tokenizer.pretokenizers[", i, "]") : "pre_tokenizer";
    object step;
    MOESAIC_RETURN_IF_ERROR(read(steps[i], place, "an object", step));
    MOESAIC_ASSIGN_OR_RETURN(const std::string_view type, read_string(step, place, "type"));
    if (byte_level) return unsupported(place, "expected ByteLevel to be the last step");
    if (type == "Split") {
      MOESAIC_RETURN_IF_ERROR(add_split(step, place, out));
    } else if (type == "Digits") {
      MOESAIC_ASSIGN_OR_RETURN(const bool individual, read_flag(step, place, "individual_digits", false));
      const SplitBehavior behavior = individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
      MOESAIC_RETURN_IF_ERROR(add_regex("\\p{N}", false, behavior, false, place, out));
    } else if (type == "ByteLevel") {
      MOESAIC_RETURN_IF_ERROR(add_byte_level(step, place, out));
      byte_level = true;
    } else {
      return unsupported(place, str_cat("expected Split, Digits or ByteLevel, found ", type));
    }
  }
  if (!byte_level) return unsupported("pre_tokenizer", "expected a ByteLevel step: only byte-level BPE is supported");
  return absl::OkStatus();
}

// A decoder other than ByteLevel would turn ids into other text.
absl::Status check_decoder(element value) {
  if (value.is_null()) return absl::OkStatus();
  object decoder;
  MOESAIC_RETURN_IF_ERROR(read(value, "decoder", "null or an object", decoder));
  MOESAIC_ASSIGN_OR_RETURN(const std::string_view type, read_string(decoder, "decoder", "type"));
  if (type != "ByteLevel") return unsupported("decoder", str_cat("expected ByteLevel, found ", type));
  return absl::OkStatus();
}

absl::Status check_model_options(object model) {
  const element type = member(model, "type");
  std::string_view name = "BPE";
  if (!type.is_null()) MOESAIC_RETURN_IF_ERROR(read(type, "model.type", "a string", name));
  if (name != "BPE") return unsupported("model.type", str_cat("expected BPE, found ", name));
  for (const char* const key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const element value = member(model, key);
    std::string_view text;
    if (value.is_null() || (value.get(text) == simdjson::SUCCESS && text.empty())) continue;
    return unsupported(str_cat("model.", key), "expected null");
  }
  double dropout = 0;
  const element value = member(model, "dropout");
  if (!value.is_null()) MOESAIC_RETURN_IF_ERROR(read(value, "model.dropout", "null or 0", dropout));
  if (dropout != 0) return unsupported("model.dropout", str_cat("expected null or 0, found ", dropout));
  MOESAIC_ASSIGN_OR_RETURN(const bool byte_fallback, read_flag(model, "model", "byte_fallback", false));
  if (byte_fallback) return unsupported("model.byte_fallback", "expected false");
  return absl::OkStatus();
}

absl::Status read_vocab(object model, TokenizerSpec& spec) {
  object vocab;
  MOESAIC_RETURN_IF_ERROR(read(member(model, "vocab"), "model.vocab", "an object of token to id", vocab));
  spec.vocab.reserve(vocab.size(), 8 * vocab.size());
  for (const auto field : vocab) {
    const absl::StatusOr<int32_t> id = read_id(field.value, "model.vocab");
    if (!id.ok())
      return bad(str_cat("model.vocab[\"", field.key, "\"]"),
                 std::string_view(id.status().message().data(), id.status().message().size()));
    if (spec.vocab.add(*id, field.key)) continue;
    return bad(str_cat("model.vocab[\"", field.key, "\"]"),
               spec.vocab.has(*id) ? str_cat("id ", *id, " is taken by another token") : "the token is listed twice");
  }
  std::string byte;
  for (int32_t b = 0; b < 256; ++b) {
    byte.assign(1, static_cast<char>(b));
    spec.bpe.set_byte(static_cast<uint8_t>(b), spec.vocab.find_bytes(byte));
  }
  return absl::OkStatus();
}

// "a b" or ["a", "b"].
bool read_merge(element merge, std::string_view& left, std::string_view& right) {
  std::string_view line;
  if (merge.get(line) == simdjson::SUCCESS) {
    const size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) return false;
    left = line.substr(0, space);
    right = line.substr(space + 1);
    return true;
  }
  array pair;
  if (merge.get(pair) != simdjson::SUCCESS || pair.size() != 2) return false;
  return pair.at(0).get(left) == simdjson::SUCCESS && pair.at(1).get(right) == simdjson::SUCCESS;
}

absl::Status read_merges(object model, TokenizerSpec& spec) {
  array merges;
  MOESAIC_RETURN_IF_ERROR(read(member(model, "merges"), "model.merges", "a list", merges));
  spec.bpe.reserve(merges.size());
  uint32_t rank = 0;
  std::string joined;
  for (const element merge : merges) {
    std::string_view left, right;
    if (!read_merge(merge, left, right)) {
      return bad(str_cat("model.merges[", rank, "]"), "expected \"left right\" or [\"left\", \"right\"]");
    }
    joined.assign(left).append(right);
    const int32_t ids[] = {spec.vocab.find_spelled(left), spec.vocab.find_spelled(right),
                           spec.vocab.find_spelled(joined)};
    for (int i = 0; i < 3; ++i) {
      if (ids[i] >= 0) continue;
      return bad(str_cat("model.merges[", rank, "]"), str_cat("token \"",
                                                              i == 0   ? left
                                                              : i == 1 ? right
                                                                       : std::string_view(joined),
                                                              "\" is not in model.vocab"));
    }
    spec.bpe.add_merge(ids[0], ids[1], rank++, ids[2]);
  }
  return absl::OkStatus();
}

absl::Status add_token(object token, const std::string& place, TokenizerSpec& spec) {
  MOESAIC_ASSIGN_OR_RETURN(const int32_t id, read_id(member(token, "id"), str_cat(place, ".id")));
  MOESAIC_ASSIGN_OR_RETURN(const std::string_view content, read_string(token, place, "content"));
  if (content.empty() || content.size() > kMaxAddedTokenBytes) {
    return bad(str_cat(place, ".content"),
               str_cat("expected 1..", kMaxAddedTokenBytes, " bytes, found ", content.size()));
  }
  for (const char* const key : {"single_word", "lstrip", "rstrip"}) {
    MOESAIC_ASSIGN_OR_RETURN(const bool flag, read_flag(token, place, key, false));
    if (flag) return unsupported(str_cat(place, ".", key), "expected false");
  }
  MOESAIC_ASSIGN_OR_RETURN(const bool special, read_flag(token, place, "special", false));
  MOESAIC_ASSIGN_OR_RETURN(const bool normalized, read_flag(token, place, "normalized", !special));
  if (spec.raw_added.find_exact(content) >= 0 || spec.normalized_added.find_exact(content) >= 0) {
    return bad(place, str_cat("\"", content, "\" is listed twice"));
  }
  const int32_t in_vocab = spec.vocab.find_spelled(content);
  if (in_vocab >= 0 && in_vocab != id) {
    return bad(str_cat(place, ".id"),
               str_cat("\"", content, "\" has id ", in_vocab, " in model.vocab and ", id, " here"));
  }
  if (in_vocab < 0 && !spec.vocab.add_text(id, content)) {
    return bad(str_cat(place, ".id"), str_cat("id ", id, " of \"", content, "\" is taken by another token"));
  }
  (normalized ? spec.normalized_added : spec.raw_added).add(content, id);
  if (special) {
    if (spec.special.size() <= static_cast<size_t>(id)) spec.special.resize(id + 1);
    spec.special[id] = true;
  }
  return absl::OkStatus();
}

absl::Status read_added_tokens(element value, TokenizerSpec& spec) {
  if (value.is_null()) return absl::OkStatus();
  array tokens;
  MOESAIC_RETURN_IF_ERROR(read(value, "added_tokens", "a list", tokens));
  size_t i = 0;
  for (const element item : tokens) {
    const std::string place = str_cat("added_tokens[", i++, "]");
    object token;
    MOESAIC_RETURN_IF_ERROR(read(item, place, "an object", token));
    MOESAIC_RETURN_IF_ERROR(add_token(token, place, spec));
  }
  return absl::OkStatus();
}

// A token is a string, an object with "content", or null.
absl::Status read_config_token(object config, std::string_view key, std::string& out) {
  element value = member(config, key);
  object token;
  if (value.get(token) == simdjson::SUCCESS) value = member(token, "content");
  if (value.is_null()) return absl::OkStatus();
  std::string_view text;
  if (value.get(text) != simdjson::SUCCESS) {
    return absl::InvalidArgumentError(
        str_cat("tokenizer_config.json: ", key, ": expected a string, found ", type_of(value)));
  }
  out = text;
  return absl::OkStatus();
}

absl::Status read_config(std::string_view json, TokenizerSpec& spec) {
  if (json.empty()) return absl::OkStatus();
  simdjson::dom::parser parser;
  object config;
  if (const auto error = parser.parse(json).get(config)) {
    return absl::InvalidArgumentError(
        str_cat("tokenizer_config.json: expected a JSON object: ", simdjson::error_message(error)));
  }
  bool add_bos = false;
  const element flag = member(config, "add_bos_token");
  if (!flag.is_null() && flag.get(add_bos) != simdjson::SUCCESS) {
    return absl::InvalidArgumentError(
        str_cat("tokenizer_config.json: add_bos_token: expected true or false, found ", type_of(flag)));
  }
  spec.add_bos_token = add_bos;
  MOESAIC_RETURN_IF_ERROR(read_config_token(config, "bos_token", spec.bos_token));
  return read_config_token(config, "eos_token", spec.eos_token);
}

}  // namespace

absl::StatusOr<TokenizerSpec> parse_tokenizer_spec(std::string_view tokenizer_json,
                                                   std::string_view tokenizer_config_json) {
  simdjson::dom::parser parser;
  element root;
  if (const auto error = parser.parse(tokenizer_json).get(root)) {
    return absl::InvalidArgumentError(str_cat("tokenizer.json: expected JSON: ", simdjson::error_message(error)));
  }
  object top, model;
  MOESAIC_RETURN_IF_ERROR(read(root, "the file", "an object", top));
  MOESAIC_RETURN_IF_ERROR(read(member(top, "model"), "model", "an object", model));
  TokenizerSpec spec;
  MOESAIC_RETURN_IF_ERROR(check_normalizer(member(top, "normalizer")));
  MOESAIC_RETURN_IF_ERROR(read_pre_tokenizer(member(top, "pre_tokenizer"), spec.pre_tokenizer));
  MOESAIC_RETURN_IF_ERROR(check_decoder(member(top, "decoder")));
  MOESAIC_RETURN_IF_ERROR(check_model_options(model));
  MOESAIC_ASSIGN_OR_RETURN(spec.ignore_merges, read_flag(model, "model", "ignore_merges", false));
  MOESAIC_RETURN_IF_ERROR(read_vocab(model, spec));
  MOESAIC_RETURN_IF_ERROR(read_merges(model, spec));
  MOESAIC_RETURN_IF_ERROR(read_added_tokens(member(top, "added_tokens"), spec));
  MOESAIC_RETURN_IF_ERROR(read_config(tokenizer_config_json, spec));
  return spec;
}

}  // namespace moesaic
