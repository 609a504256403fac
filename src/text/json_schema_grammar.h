// JSON schemas as grammars. Honoured: type (also a list), properties, required, additionalProperties, items,
// prefixItems, minItems, maxItems, enum, const, anyOf, oneOf, allOf of one, $ref within the document (recursion too),
// minimum, maximum and their exclusive forms (integer; number where the bounds are whole), minLength, maxLength,
// pattern, format (date, time, date-time, uuid, email, ipv4). Annotations (title, description, default ...) mean
// nothing. Every other keyword, and combinations that are not honoured, are an INVALID_ARGUMENT that names them and
// their path.
//
// What is generated is always an instance; not every instance can be generated:
// - members come in the order of `properties`, each at most once, then additional ones (without escapes in their
// names);
// - without additionalProperties an object with properties has no others; without items a tuple has no others;
// - oneOf is read as anyOf; a schema without type but with keywords of one type is of that type;
// - maxLength and maxItems above 10,000 count as 10,000; white space and digits as json_exprs.h says.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/status.h"
#include "text/grammar_builder.h"

namespace moesaic {

// The rule of the whole document. `schema` is nested at most 128 deep.
absl::StatusOr<GrammarBuilder::Rule> json_schema_rule(const nlohmann::ordered_json& schema, GrammarBuilder* builder);

}  // namespace moesaic
