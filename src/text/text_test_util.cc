#include "text/text_test_util.h"

#include "text/files.h"
#include "text/utf8.h"

namespace moesaic {

using nlohmann::ordered_json;

std::string source_path(const std::string& relative) {
  return std::string(MOESAIC_SOURCE_DIR) + "/" + relative;
}

std::string read_source_file(const std::string& relative) {
  return read_text_file(source_path(relative), 1 << 30).value();
}

ordered_json byte_tokenizer() {
  ordered_json vocab = ordered_json::object();
  uint32_t next = 0x100;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    std::string spelled;
    append_code_point(printable ? b : next++, spelled);
    vocab[spelled] = b;
  }
  ordered_json added = ordered_json::array();
  const auto add = [&](const char* content, bool special) {
    const size_t id = 256 + 4 + added.size();
    added.push_back({{"id", id},
                     {"content", content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", !special},
                     {"special", special}});
  };
  vocab["Ġt"] = 256;
  vocab["he"] = 257;
  vocab["ll"] = 258;
  vocab["th"] = 259;
  for (const char* token : {"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"})
    add(token, true);
  for (const char* token : {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
                            "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"})
    add(token, false);
  const char* const pattern = R"([^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  return {{"version", "1.0"},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "Sequence"},
            {"pretokenizers",
             {{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}},
              {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}}}}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"Ġ t", "h e", "l l", "t h"}}}}};
}

}  // namespace moesaic
