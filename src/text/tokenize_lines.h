// The work of `moesaic tokenize`: JSON lines in, JSON lines out, one answer a line, in order.
//   {"text"} -> {"ids"} (no BOS added)      {"ids", "skip_special_tokens"?} -> {"text"}
//   {"messages", "tools"?, "add_generation_prompt"?, "thinking"?, ...} -> {"rendered"}
// What else stands beside "messages" goes to the template by its name. A line that cannot be answered gives {"error"}
// and the next one is read; empty lines are skipped. Output is UTF-8, escaped only where JSON requires it.
#pragma once

#include <iosfwd>
#include <string>
#include <string_view>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace moesaic {

// `chat_template` may be null: {"messages"} is then an error. Returns the number of lines that gave an error.
int64_t tokenize_lines(std::istream& in, std::ostream& out, const Tokenizer& tokenizer,
                       const ChatTemplate* chat_template);

// One line, without a newline. Sets `failed` if it is an error.
std::string tokenize_line(std::string_view line, const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                          bool& failed);

}  // namespace moesaic
