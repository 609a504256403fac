// The syntax tree of a chat template: plain data, built by the parser and read by the evaluator. Internal to the
// template renderer. Depth is bounded by the parser.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/jinja_lexer.h"
#include "text/jinja_value.h"

namespace moesaic::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind : uint8_t {
  kLiteral,
  kName,
  kList,       // args (a tuple too)
  kDict,       // args: key, value, key, value
  kAttribute,  // args[0].name
  kIndex,      // args[0][args[1]]
  kSlice,      // args[0][args[1]:args[2]:args[3]], null = left out
  kUnary,      // name: "-", "+", "not"
  kBinary,     // name: + - * / // % ** ~ and or
  kCompare,    // args[0] names[0] args[1] names[1] args[2] ...
  kChoose,     // args[0] if args[1] else args[2] (null: undefined)
  kFilter,     // args[0] | name(args[1..], named)
  kTest,       // args[0] is name(args[1..])
  kMethod,     // args[0].name(args[1..], named)
  kCall,       // name(args, named)
};

struct Expr {
  ExprKind kind = ExprKind::kLiteral;
  Place place;
  Value literal;
  std::string name;
  std::vector<ExprPtr> args;
  std::vector<std::string> names;                      // kCompare
  std::vector<std::pair<std::string, ExprPtr>> named;  // keyword arguments
  int depth = 1;                                       // of the tree below
};

struct Node;
using Body = std::vector<std::unique_ptr<Node>>;

enum class NodeKind : uint8_t { kText, kPrint, kIf, kFor, kSet, kSetBlock, kBreak, kContinue };

struct Node {
  NodeKind kind = NodeKind::kText;
  Place place;
  std::string text;  // kText; kSet: the attribute of the namespace names[0], or ""
  ExprPtr expr;      // kPrint, kSet: the value; kFor: what is iterated
  // kIf: one body for each condition, and one more for else.
  std::vector<ExprPtr> conditions;  // kFor: at most one, the filter
  std::vector<Body> bodies;         // kFor: the loop and, if present, else; kSetBlock: one
  std::vector<std::string> names;   // kSet, kFor: targets
};

}  // namespace moesaic::jinja
