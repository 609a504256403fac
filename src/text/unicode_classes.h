// Makes PCRE2 see characters in the classes in which the reference tokenizer library sees them. The two carry different
// versions of Unicode, so a newer emoji or letter would end up in another word and get other ids. Also U+180E, a space
// for PCRE2 only. Free function; any thread.
#pragma once

#include <string>
#include <string_view>

namespace moesaic {

// `text` itself, or a copy of the same length (in `copy`) in which such characters are replaced by others that are in
// the right class; for matching only. `text` is valid UTF-8.
std::string_view with_reference_classes(std::string_view text, std::string& copy);

}  // namespace moesaic
