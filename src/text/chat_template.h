// ChatTemplate: renders the Jinja template of tokenizer_config.json (the constructs that DeepSeek's templates use).
// Anything it does not know is an error at load that names the construct and where it stands. Immutable and
// thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "base/status.h"

namespace moesaic {

class ChatTemplate {
 public:
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> parse(std::string_view source);
  // From tokenizer_config.json (chat_template, bos_token, eos_token) or chat_template.jinja. NOT_FOUND if the model has
  // none.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> load(const std::string& model_dir);
  ~ChatTemplate();

  // `variables`: messages, tools (or null), add_generation_prompt, thinking, ... as in Hugging Face's
  // apply_chat_template; bos_token and eos_token are added from the file. Errors: what the template raises, a type
  // error with its place.
  absl::StatusOr<std::string> render(const nlohmann::ordered_json& variables) const;
  // The template's text, e.g. for OutputParser::detect_tool_format.
  const std::string& source() const;
  // The rendered text ends inside an open reasoning block (the prompt itself opened <think>).
  static bool opens_reasoning(std::string_view rendered);

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moesaic
