#include "serve/http/json.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "text/utf8.h"

namespace moesaic {
namespace {

// Appends to the object's underlying vector: a look-up for each key would make large objects quadratic.
class JsonBuilder final : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return add(Json(nullptr)) != nullptr; }
  bool boolean(bool value) override { return add(Json(value)) != nullptr; }
  bool number_integer(number_integer_t value) override { return add(Json(value)) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return add(Json(value)) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override {
    if (!std::isfinite(value)) return fail("a number is out of range");
    return add(Json(value)) != nullptr;
  }
  bool string(string_t& value) override { return add(Json(std::move(value))) != nullptr; }
  bool binary(binary_t&) override { return fail("binary values are not JSON"); }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_array() override {
    open_.pop_back();
    return true;
  }
  bool key(string_t& key) override {
    key_ = std::move(key);
    return true;
  }
  bool end_object() override {
    const Json& object = *open_.back();
    open_.pop_back();
    std::vector<std::string_view> keys;
    keys.reserve(object.size());
    for (const auto& [key, value] : object.get_ref<const Json::object_t&>()) keys.push_back(key);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice == keys.end()) return true;
    return fail(str_cat("the key ", json_string(twice->substr(0, 64)), " appears twice in one object"));
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    std::string_view what = error.what();  // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    if (const size_t end = what.find("] "); end != what.npos) what.remove_prefix(end + 2);
    return fail(str_cat("byte ", position, ": ", what.substr(0, 300)));
  }

  Json take() { return std::move(root_); }
  const std::string& error() const { return error_; }

 private:
  bool fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
    return false;
  }
  Json* add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      auto& items = parent.get_ref<Json::array_t&>();
      items.push_back(std::move(value));
      return &items.back();
    }
    auto& members = parent.get_ref<Json::object_t&>();
    members.emplace_back(std::move(key_), std::move(value));
    return &members.back().second;
  }
  bool open(Json value) {
    if (open_.size() >= kMaxJsonDepth) return fail(str_cat("nesting is deeper than ", kMaxJsonDepth, " levels"));
    open_.push_back(add(std::move(value)));  // stays valid: a parent grows only when its last child is closed
    return true;
  }

  Json root_;
  std::vector<Json*> open_;
  std::string key_;
  std::string error_;
};

}  // namespace

absl::StatusOr<Json> parse_json(std::string_view text) {
  JsonBuilder builder;
  try {
    if (Json::sax_parse(text.begin(), text.end(), &builder)) return builder.take();
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(str_cat("not valid JSON: ", error.what()));
  }
  return absl::InvalidArgumentError(str_cat("not valid JSON: ", builder.error()));
}

size_t count_code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

void append_json_string(std::string& out, std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  for (size_t i = 0; i < text.size();) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    if (c >= 0x80) {
      const Utf8Step step = utf8_step(text.substr(i));
      out += step.valid ? text.substr(i, step.length) : std::string_view("\xEF\xBF\xBD");
      i += step.length;
      continue;
    }
    ++i;
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c >= 0x20 && c != 0x7F) {
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else {
      out += "\\u00";
      out += kHex[c >> 4];
      out += kHex[c & 15];
    }
  }
  out += '"';
}

std::string json_string(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

void append_json_number(std::string& out, float value) {
  if (!std::isfinite(value)) value = -9999.0f;
  out += str_cat(value);
}

}  // namespace moesaic
