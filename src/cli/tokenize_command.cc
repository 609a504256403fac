#include <iostream>

#include "cli/command.h"
#include "cli/model_settings.h"
#include "text/tokenize_lines.h"

namespace moesaic {
namespace {

struct TokenizeConfig {
  std::string model_path;
};

void declare(ConfigFields& fields, TokenizeConfig& config) {
  add_model_path(fields, &config.model_path).required();
}

absl::Status run(TokenizeConfig& config) {
  MOESAIC_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, Tokenizer::load(config.model_path));
  auto chat_template = ChatTemplate::load(config.model_path);
  if (!chat_template.ok() && !absl::IsNotFound(chat_template.status())) return chat_template.status();
  const ChatTemplate* rendering = chat_template.ok() ? chat_template->get() : nullptr;
  std::ios::sync_with_stdio(false);
  const int64_t num_errors = tokenize_lines(std::cin, std::cout, *tokenizer, rendering);
  std::cout.flush();
  if (num_errors == 0) return absl::OkStatus();
  return absl::DataLossError(str_cat(num_errors, " lines could not be answered"));
}

}  // namespace

Command tokenize_command() {
  return make_command<TokenizeConfig, declare, run>(
      "tokenize", "Answers JSON lines: {text} with ids, {ids} with text, {messages} with the rendered prompt.");
}

}  // namespace moesaic
