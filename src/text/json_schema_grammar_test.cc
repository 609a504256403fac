#include "text/json_schema_grammar.h"

#include <algorithm>
#include <map>

#include "text/grammar_test_util.h"
#include "text/regex.h"
#include "text/utf8.h"

namespace moesaic {
namespace {

// --- An independent validator of the keywords in use ---

bool valid(const Json& schema, const Json& value, const Json& root);

bool valid_type(const std::string& type, const Json& value) {
  if (type == "integer") return value.is_number_integer();
  return type == (value.is_number() ? "number" : value.type_name());
}

bool valid_string(const Json& schema, const std::string& text) {
  const auto length = static_cast<int64_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
  if (length < schema.value("minLength", 0) || length > schema.value("maxLength", 1'000'000)) return false;
  if (!schema.contains("pattern")) return true;
  std::vector<Regex::Match> matches;
  return Regex::compile(schema["pattern"].get<std::string>())->find_all(text, matches) && !matches.empty();
}

bool valid_object(const Json& schema, const Json& value, const Json& root) {
  const Json none = Json::object();
  const Json& properties = schema.contains("properties") ? schema["properties"] : none;
  for (const auto& name : schema.value("required", Json::array())) {
    if (!value.contains(name.get<std::string>())) return false;
  }
  for (const auto& [name, member] : value.items()) {
    if (properties.contains(name)) {
      if (!valid(properties[name], member, root)) return false;
    } else if (!valid(schema.value("additionalProperties", Json(!schema.contains("properties"))), member, root)) {
      return false;
    }
  }
  return true;
}

bool valid_array(const Json& schema, const Json& value, const Json& root) {
  const auto size = static_cast<int64_t>(value.size());
  if (size < schema.value("minItems", 0) || size > schema.value("maxItems", 1'000'000)) return false;
  const Json prefix = schema.value("prefixItems", Json::array());
  for (size_t i = 0; i < value.size(); ++i) {
    const Json item = i < prefix.size() ? prefix[i] : schema.value("items", Json(prefix.empty()));
    if (!valid(item, value[i], root)) return false;
  }
  return true;
}

bool valid(const Json& schema, const Json& value, const Json& root) {
  if (schema.is_boolean()) return schema.get<bool>();
  if (schema.contains("$ref")) {
    return valid(root.at(Json::json_pointer(schema["$ref"].get<std::string>().substr(1))), value, root);
  }
  if (schema.contains("enum"))
    return std::find(schema["enum"].begin(), schema["enum"].end(), value) != schema["enum"].end();
  if (schema.contains("const")) return schema["const"] == value;
  for (const char* name : {"anyOf", "oneOf"}) {
    if (!schema.contains(name)) continue;
    return std::any_of(schema[name].begin(), schema[name].end(), [&](const Json& s) { return valid(s, value, root); });
  }
  if (!schema.contains("type")) return true;
  const Json types = schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
  if (std::none_of(types.begin(), types.end(), [&](const Json& type) { return valid_type(type, value); })) return false;
  if (value.is_string()) return valid_string(schema, value);
  if (value.is_object()) return valid_object(schema, value, root);
  if (value.is_array()) return valid_array(schema, value, root);
  if (!value.is_number()) return true;
  const double number = value.get<double>();
  return number >= schema.value("minimum", -1e300) && number <= schema.value("maximum", 1e300) &&
         number > schema.value("exclusiveMinimum", -1e300) && number < schema.value("exclusiveMaximum", 1e300);
}

// --- Random schemas ---

const char* const kNames[] = {"a", "ab", "name", "né", "x y", "q\"q", "世界"};
const char* const kPatterns[] = {"^[a-f]{2,4}$", "[0-9]+", "^(?:no|yes)", "\"$", "^a.c$"};
const std::map<std::string, std::vector<std::string>> kPatternTexts = {{"^[a-f]{2,4}$", {"ab", "fade"}},
                                                                       {"[0-9]+", {"7", "x42 y", "世1"}},
                                                                       {"^(?:no|yes)", {"no", "yes\n!", "nobody"}},
                                                                       {"\"$", {"\"", "so \"he said\""}},
                                                                       {"^a.c$", {"abc", "a\\c", "a\tc"}}};

int64_t random_bound(Rng& rng) {
  static constexpr int64_t kBounds[] = {0, 1, 5, 9, 10, 99, 100, 137, 1000, 65535, 1'000'000'007};
  const int64_t bound = kBounds[rng.below(std::size(kBounds))];
  return rng.below(3) == 0 ? -bound : bound;
}

Json random_schema(Rng& rng, int depth);

Json random_object(Rng& rng, int depth) {
  Json schema = {{"type", "object"}, {"properties", Json::object()}};
  for (const char* name : kNames) {
    if (rng.below(2) == 0) continue;
    schema["properties"][name] = random_schema(rng, depth - 1);
    if (rng.below(2) == 0) schema["required"].push_back(name);
  }
  if (schema["properties"].empty()) schema.erase("properties");
  const uint64_t kind = rng.below(4);
  if (kind < 2) schema["additionalProperties"] = kind == 1;
  if (kind == 2) schema["additionalProperties"] = random_schema(rng, 0);
  return schema;
}

Json random_array(Rng& rng, int depth) {
  Json schema = {{"type", "array"}};
  if (rng.below(4) == 0) {
    for (uint64_t n = 1 + rng.below(3); n > 0; --n) schema["prefixItems"].push_back(random_schema(rng, depth - 1));
    if (rng.below(2) == 0) schema["items"] = rng.below(2) == 0 ? Json(false) : random_schema(rng, 0);
    return schema;
  }
  if (rng.below(5) > 0) schema["items"] = random_schema(rng, depth - 1);
  if (rng.below(2) == 0) schema["minItems"] = rng.below(4);
  if (rng.below(2) == 0) schema["maxItems"] = schema.value("minItems", 0) + rng.below(4);
  return schema;
}

Json random_number(Rng& rng) {
  Json schema = {{"type", rng.below(2) == 0 ? "integer" : "number"}};
  int64_t low = random_bound(rng);
  int64_t high = random_bound(rng);
  if (low > high) std::swap(low, high);
  if (rng.below(3) > 0) schema[rng.below(2) == 0 ? "minimum" : "exclusiveMinimum"] = low;
  if (rng.below(3) > 0) schema[rng.below(2) == 0 ? "maximum" : "exclusiveMaximum"] = high + 2;
  return schema;
}

Json random_schema(Rng& rng, int depth) {
  switch (depth > 0 ? rng.below(13) : rng.below(7)) {
    case 0:
      return {{"type", "boolean"}, {"title", "a flag"}};
    case 1:
      return {{"type", "null"}};
    case 2: {
      Json schema = {{"type", "string"}};
      if (rng.below(2) == 0) schema["minLength"] = rng.below(4);
      if (rng.below(2) == 0) schema["maxLength"] = schema.value("minLength", 0) + rng.below(5);
      return schema;
    }
    case 3:
      return {{"type", "string"}, {"pattern", kPatterns[rng.below(std::size(kPatterns))]}};
    case 4:
      return random_number(rng);
    case 5:
      return {{"enum", {"red", "re", "green", 5, -1.5, nullptr, Json::array({1, "x"}), {{"k", "v"}}}}};
    case 6:
      return {{"const", kNames[rng.below(std::size(kNames))]}, {"type", "string"}};
    case 7:
    case 8:
      return random_array(rng, depth);
    case 9:
      return {{rng.below(2) == 0 ? "anyOf" : "oneOf", {random_schema(rng, depth - 1), random_schema(rng, depth - 1)}}};
    case 10:
      return {{"type", {"string", "null", "integer"}}, {"maxLength", 3}, {"minimum", 7}};
    case 11:
      return {{"$ref", "#/$defs/node"}};
    default:
      return random_object(rng, depth);
  }
}

// --- Random instances ---

Json instance(const Json& schema, const Json& root, Rng& rng, int depth);

std::string random_string(Rng& rng, int64_t min, int64_t max) {
  static constexpr const char* kLetters[] = {"a", "Z", " ", "\"", "\\", "\n", "é", "世", "😀", "/", "\x01", "{"};
  std::string out;
  for (int64_t n = min + static_cast<int64_t>(rng.below(std::min<int64_t>(max - min, 8) + 1)); n > 0; --n) {
    out += kLetters[rng.below(std::size(kLetters))];
  }
  return out;
}

Json number_instance(const Json& schema, bool integer, Rng& rng) {
  int64_t low = schema.value("minimum", schema.value("exclusiveMinimum", int64_t{-3'000'000'000}) + 1);
  int64_t high = schema.value("maximum", schema.value("exclusiveMaximum", int64_t{3'000'000'000}) - 1);
  if (schema.contains("minimum") && schema.contains("exclusiveMinimum"))
    low = std::max<int64_t>(low, schema["exclusiveMinimum"]);
  if (rng.below(3) == 0) high = std::min(high, low + 3);
  const int64_t number = low + static_cast<int64_t>(rng.below(static_cast<uint64_t>(high - low) + 1));
  if (integer || number == high || rng.below(2) == 0) return number;
  return static_cast<double>(number) + 0.25;
}

Json object_instance(const Json& schema, const Json& root, Rng& rng, int depth) {
  Json out = Json::object();
  const Json required = schema.value("required", Json::array());
  const Json properties = schema.value("properties", Json::object());
  for (const auto& [name, member] : properties.items()) {
    const bool needed = std::find(required.begin(), required.end(), name) != required.end();
    if (needed || (depth > 0 && rng.below(2) == 0)) out[name] = instance(member, root, rng, depth - 1);
  }
  const Json other = schema.value("additionalProperties", Json(properties.empty()));
  for (uint64_t n = other == false ? 0 : rng.below(3); n > 0; --n) {
    const std::string name = str_cat(kNames[rng.below(3)], rng.below(2) == 0 ? "é" : "z", n);
    out[name] = instance(other, root, rng, depth - 1);
  }
  return out;
}

Json array_instance(const Json& schema, const Json& root, Rng& rng, int depth) {
  Json out = Json::array();
  const Json prefix = schema.value("prefixItems", Json::array());
  const Json items = schema.value("items", Json(prefix.empty()));
  const int64_t min = schema.value("minItems", 0);
  int64_t max = schema.value("maxItems", min + 3);
  if (items == false) max = static_cast<int64_t>(prefix.size());
  const int64_t size = min + (depth > 0 ? static_cast<int64_t>(rng.below(max - min + 1)) : 0);
  for (int64_t i = 0; i < size; ++i) {
    out.push_back(instance(i < static_cast<int64_t>(prefix.size()) ? prefix[i] : items, root, rng, depth - 1));
  }
  return out;
}

Json instance(const Json& schema, const Json& root, Rng& rng, int depth) {
  if (schema.is_boolean()) {
    return Json::array({nullptr, 1.5, "any", Json::array({1}), {{"k", Json::object()}}})[rng.below(5)];
  }
  if (schema.contains("$ref")) {
    return instance(root.at(Json::json_pointer(schema["$ref"].get<std::string>().substr(1))), root, rng, depth - 1);
  }
  if (schema.contains("enum")) return schema["enum"][rng.below(schema["enum"].size())];
  if (schema.contains("const")) return schema["const"];
  for (const char* name : {"anyOf", "oneOf"}) {
    if (schema.contains(name)) return instance(schema[name][rng.below(2)], root, rng, depth);
  }
  std::string type = schema["type"].is_array() ? schema["type"][rng.below(3)] : schema["type"];
  if (type == "boolean") return rng.below(2) == 0;
  if (type == "null") return nullptr;
  if (type == "string" && schema.contains("pattern")) {
    const auto& texts = kPatternTexts.at(schema["pattern"]);
    return texts[rng.below(texts.size())];
  }
  if (type == "string") {
    const int64_t min = schema.value("minLength", 0);
    return random_string(rng, min, schema.value("maxLength", min + 8));
  }
  if (type == "object") return object_instance(schema, root, rng, depth);
  if (type == "array") return array_instance(schema, root, rng, depth);
  return number_instance(schema, type == "integer", rng);
}

// In one of the ways that people print JSON. What enum and const hold is compact.
std::string printed(const Json& value, int style, int indent = 0) {
  if (!value.is_structured() || style == 0) return value.dump();
  if (value == Json::array({1, "x"}) || value == Json{{"k", "v"}}) return value.dump();
  const bool lines = style == 2 && !value.empty();
  const auto line = [&](int depth) { return lines ? "\n" + std::string(2 * depth, ' ') : std::string(); };
  std::string out(1, value.is_object() ? '{' : '[');
  bool first = true;
  for (const auto& [name, member] : value.items()) {
    if (!std::exchange(first, false)) out += lines ? "," : ", ";
    out += line(indent + 1);
    if (value.is_object()) out += Json(name).dump() + ": ";
    out += printed(member, style, indent + 1);
  }
  return out + line(indent) + (value.is_object() ? "}" : "]");
}

Json random_root(Rng& rng) {
  Json root = rng.below(3) == 0 ? random_array(rng, 3) : random_object(rng, 3);
  root["$defs"]["node"] = {{"type", "object"},
                           {"properties", {{"v", {{"type", "integer"}}}, {"next", {{"$ref", "#/$defs/node"}}}}},
                           {"required", {"v"}}};
  return root;
}

void mutate(Json& value, Rng& rng) {
  if (value.is_structured() && !value.empty() && rng.below(3) > 0) {
    auto member = value.begin();
    std::advance(member, rng.below(value.size()));
    return mutate(*member, rng);
  }
  switch (rng.below(4)) {
    case 0:
      if (value.is_object() && !value.empty()) return (void)value.erase(value.begin());
      if (value.is_number()) value = value.get<double>() * 1000 - 7;
      break;
    case 1:
      if (value.is_object()) value["other"] = 1;
      if (value.is_array()) value.push_back("more");
      if (value.is_string()) value = value.get<std::string>() + "####";
      break;
    case 2:
      value = Json::array({nullptr, -77, "text", true, Json::array(), Json::object()})[rng.below(6)];
      break;
    default:
      if (value.is_array() && !value.empty()) value.erase(value.size() - 1);
      if (value.is_string()) value = "";
  }
}

TEST(JsonSchemaGrammarTest, InstancesAreWordsAndOthersAreNot) {
  int num_invalid = 0;
  int num_walked = 0;
  for (uint64_t seed = 1; seed <= 250; ++seed) {
    Rng rng(seed);
    const Json schema = random_root(rng);
    SCOPED_TRACE(str_cat("seed ", seed, " ", schema.dump()));
    const auto grammar = schema_grammar(schema.dump());
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    Recognizer recognizer(*grammar);
    for (int i = 0; i < 12; ++i) {
      Json value = instance(schema, schema, rng, 4);
      const std::string text = printed(value, i % 3);
      ASSERT_TRUE(valid(schema, value, schema)) << text;
      ASSERT_TRUE(recognizer.is_word(text)) << text;
      for (const char* more : {" ", "}", ",", "1"}) ASSERT_FALSE(recognizer.is_prefix(text + more));
      for (int j = 0; j < 4; ++j) {
        mutate(value, rng);
        if (valid(schema, value, schema)) continue;
        ++num_invalid;
        ASSERT_FALSE(recognizer.is_word(printed(value, j % 3))) << value.dump();
      }
    }
    for (int i = 0; i < 4; ++i) {
      const std::string text = recognizer.random_word(rng, rng.below(60));
      if (text == "?") continue;  // no end near
      ++num_walked;
      const Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
      ASSERT_TRUE(!value.is_discarded() && valid(schema, value, schema)) << text;
    }
  }
  EXPECT_GT(num_invalid, 3000);
  EXPECT_GT(num_walked, 800);
}

TEST(JsonSchemaGrammarTest, MasksAllowEveryTokenisation) {
  GrammarMatchers matchers(demo_tokenizer(), kDemoVocabSize);
  std::vector<uint64_t> mask(kDemoVocabSize / 64);
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Rng rng(seed);
    const Json schema = random_root(rng);
    const auto grammar = schema_grammar(schema.dump());
    for (int i = 0; i < 3; ++i) {
      const std::string text = printed(instance(schema, schema, rng, 4), i);
      SCOPED_TRACE(str_cat("seed ", seed, " ", schema.dump(), "\n", text));
      const auto matcher = matchers.start(*grammar);
      for (const int32_t id : random_tokens(text, rng)) {
        ASSERT_TRUE(matcher->fill_mask(mask));
        ASSERT_TRUE(has_bit(mask, id) && matcher->accept(id)) << id;
      }
      ASSERT_TRUE(matcher->is_complete() && !matcher->can_continue());
    }
  }
}

struct Texts {
  const char* schema;
  std::vector<std::string> words;
  std::vector<std::string> others;
};

TEST(JsonSchemaGrammarTest, Keywords) {
  const std::vector<Texts> cases = {
      {R"({"type":"integer","minimum":-5,"exclusiveMaximum":120})",
       {"-5", "0", "9", "119"},
       {"-6", "120", "-0", "01", "1.0"}},
      {R"({"type":"integer","minimum":2.5,"maximum":1e1})", {"3", "10"}, {"2", "11"}},
      {R"({"type":"number","exclusiveMinimum":0,"maximum":1})",
       {"0.5", "1", "0.000001"},
       {"0", "0.0", "1.5", "-0.5", "1e-1"}},
      {R"({"type":"number","maximum":-1})", {"-1", "-1.5", "-20"}, {"-0.5", "1"}},
      {R"({"type":"number"})", {"0", "-0", "1.25", "-3e10", "1E-5"}, {"01", ".5", "1.", "+1", "1e", "NaN"}},
      {R"({"type":"string","format":"date"})",
       {"\"2024-02-29\"", "\"1999-12-31\""},
       {"\"2023-02-29\"", "\"2024-04-31\"", "\"2024-13-01\""}},
      {R"({"type":"string","format":"date-time"})",
       {"\"2024-02-29T23:59:00.5Z\"", "\"2024-01-01T00:00:00+01:00\""},
       {"\"2024-01-01 00:00:00Z\"", "\"2024-01-01T24:00:00Z\""}},
      {R"({"type":"string","format":"uuid"})", {"\"123e4567-e89b-12d3-a456-426614174000\""}, {"\"123e4567\""}},
      {R"({"type":"string","format":"email"})", {"\"a.b@c-d.org\""}, {"\"a@b\"", "\"@c.org\""}},
      {R"({"type":"string","format":"ipv4"})", {"\"255.0.10.9\""}, {"\"256.0.0.1\"", "\"01.0.0.0\""}},
      {R"({"type":"string"})",
       {R"("\ud83d\ude00 \u00e9 \\ \/")", "\"\xF0\x9F\x98\x80\""},
       {R"("\ud83d")", R"("\x")", "\"\n\"", "\"\xC3\""}},
      {R"({"properties":{"a":{"type":"null"}}})",
       {"{}", "{\"a\":null}", "{\n  \"a\": null\n}"},
       {"{\"b\":1}", "{\"a\":null,\"a\":null}"}},
      {R"({"type":"object","properties":{"ab":{},"a":{}},"additionalProperties":{"type":"null"}})",
       {"{\"ab\":1,\"b\":null}", "{\"abc\":null}", "{\"\":null}"},
       {"{\"ab\":1,\"ab\":null}", "{\"z\":null,\"a\":1}"}},
      {R"({"type":"object","required":["q"]})", {"{\"q\":1}", "{\"q\":[],\"r\":2}"}, {"{}", "{\"r\":2}"}},
      {R"({"prefixItems":[{"const":1},{"const":2}],"minItems":1,"items":false})",
       {"[1]", "[1,2]"},
       {"[]", "[2]", "[1,2,3]"}},
      {R"({"anyOf":[{"$ref":"#"},{"const":"x"}]})", {"\"x\""}, {"\"y\""}},
      {R"({"allOf":[{"type":"boolean"}]})", {"true"}, {"1"}},
      {R"({"type":["integer","null"],"enum":[1,"x",null]})", {"1", "null"}, {"\"x\""}},
      {"true", {"1", "{\"a\": [1, {}]}"}, {"", "x"}},
      {R"({"$ref":"#/$defs/a~1b","$defs":{"a/b":{"const":1}}})", {"1"}, {"2"}},
  };
  for (const Texts& c : cases) {
    const auto grammar = schema_grammar(c.schema);
    ASSERT_TRUE(grammar.ok()) << c.schema << grammar.status();
    Recognizer recognizer(*grammar);
    for (const std::string& word : c.words) EXPECT_TRUE(recognizer.is_word(word)) << c.schema << " " << word;
    for (const std::string& other : c.others) EXPECT_FALSE(recognizer.is_word(other)) << c.schema << " " << other;
  }
}

// No text goes on for ever in white space.
TEST(JsonSchemaGrammarTest, WhiteSpaceIsBounded) {
  Recognizer recognizer(*schema_grammar(R"({"properties":{"a":{"type":"array"}}})"));
  for (const std::string before : {"", "{", "{\"a\":", "{\"a\":[", "{\"a\":[1", "{\"a\":[1,", "{\"a\":[1]"}) {
    for (const char* space : {" ", "\n", "\t", "\r"}) {
      std::string text = before;
      while (recognizer.is_prefix(text)) text += text == before ? space : " ";
      EXPECT_LE(text.size(), before.size() + 42) << before;
    }
  }
}

TEST(JsonSchemaGrammarTest, WhatIsNotHonouredIsNamedWithItsPath) {
  const std::map<std::string, std::string> wrong = {
      {R"({"properties":{"a":{"items":{"not":{}}}}})", "at #/properties/a/items: the keyword \"not\" is not supported"},
      {R"({"type":"array","uniqueItems":true})", "\"uniqueItems\" is not supported"},
      {R"({"$defs":{"x":{"if":{}}},"$ref":"#/$defs/x"})", "at #/$defs/x: the keyword \"if\""},
      {R"({"patternProperties":{}})", "\"patternProperties\" is not supported"},
      {R"({"allOf":[{},{}]})", "\"allOf\" of more than one"},
      {R"({"anyOf":[{}],"type":"object"})", "\"anyOf\" together with \"type\""},
      {R"({"$ref":"http://x/y"})", "must be a path within the schema"},
      {R"({"$ref":"#/$defs/none"})", "which is not there"},
      {R"({"$ref":"#"})", "matches no text"},
      {R"({"type":"number","minimum":0.5})", "\"minimum\" with a fraction"},
      {R"({"type":"number","multipleOf":2})", "\"multipleOf\" is not supported"},
      {R"({"type":"string","format":"regex"})", "the \"format\" \"regex\" is not supported"},
      {R"({"type":"string","pattern":"a","maxLength":3})", "more than one of"},
      {R"x({"type":"string","pattern":"(?=a)"})x", "\"pattern\": byte 2: (?= is not supported"},
      {R"({"type":"string","minLength":20000})", "the limit is 10000"},
      {R"({"type":"string","minLength":-1})", "at least 0"},
      {R"({"type":"strong"})", "a name of a type"},
      {R"({"type":[]})", "must not be empty"},
      {R"({"enum":[]})", "no value is possible"},
      {R"({"enum":[1],"type":"string"})", "no value is possible"},
      {R"({"properties":{"a":{}},"required":["b"]})", "\"required\" names \"b\""},
      {R"({"items":[{}]})", "use \"prefixItems\""},
      {R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})", "matches no text"},
      {R"({"properties":[]})", "must be an object"},
      {"[]", "an object or a boolean"},
      {"false", "matches no text"},
  };
  for (const auto& [schema, message] : wrong) {
    const auto grammar = schema_grammar(schema);
    ASSERT_FALSE(grammar.ok()) << schema;
    EXPECT_NE(grammar.status().message().find(message), std::string::npos) << schema << " " << grammar.status();
  }
}

TEST(JsonSchemaGrammarTest, LargeSchemas) {
  Json chain = {{"$ref", "#/$defs/0"}};
  for (int i = 0; i < 10'000; ++i) chain["$defs"].push_back({{"$ref", str_cat("#/$defs/", i + 1)}});
  chain["$defs"].push_back({{"const", 1}});
  const auto long_chain = schema_grammar(chain.dump());
  ASSERT_TRUE(long_chain.ok()) << long_chain.status();
  EXPECT_TRUE(Recognizer(*long_chain).is_word("1"));
  Json wide;
  for (int i = 0; i < 3'000; ++i) wide["properties"][str_cat("name ", i)] = {{"type", "string"}};
  Recognizer wide_recognizer(*schema_grammar(wide.dump()));
  EXPECT_TRUE(wide_recognizer.is_word("{\"name 7\":\"a\",\"name 2999\":\"b\"}"));
  Json values;
  for (int i = 0; i < 20'000; ++i) values["enum"].push_back(str_cat("value ", i * 7919));
  EXPECT_TRUE(Recognizer(*schema_grammar(values.dump())).is_word("\"value 79190\""));
  const auto large =
      schema_grammar(R"({"type":"array","items":{"type":"array","maxItems":9999,"items":{"prefixItems":[)" + [] {
        std::string items = "{\"type\":\"string\",\"maxLength\":9001}";
        for (int i = 0; i < 30; ++i) items += str_cat(",{\"type\":\"string\",\"maxLength\":", 9002 + i, "}");
        return items;
      }() + "]}}}");
  EXPECT_NE(large.status().message().find("too large"), std::string::npos) << large.status();
}

}  // namespace
}  // namespace moesaic
