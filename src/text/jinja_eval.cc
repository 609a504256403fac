#include "text/jinja_eval.h"

#include <algorithm>
#include <unordered_map>

#include "text/jinja_operators.h"

namespace moesaic::jinja {

namespace {

constexpr int64_t kStepsPerIteration = 8;  // a loop's own work

enum class Flow : uint8_t { kNext, kBreak, kContinue };

class Evaluator {
 public:
  Evaluator(Dict variables, int64_t max_steps) : context_(max_steps) {
    scopes_.emplace_back();
    for (auto& [name, value] : variables) scopes_[0][name] = std::move(value);
  }

  absl::StatusOr<std::string> run(const Body& body) {
    std::string out;
    run_body(body, out);
    if (context_.failed()) return context_.status();
    return out;
  }

 private:
  using Scope = std::unordered_map<std::string, Value>;

  Flow run_body(const Body& body, std::string& out);
  Flow run_node(const Node& node, std::string& out);
  Flow run_if(const Node& node, std::string& out);
  Flow run_for(const Node& node, std::string& out);
  void run_set(const Node& node);
  void bind(const Node& node, const Value& value);
  void append(Place place, std::string_view text, std::string& out);

  Value eval(const Expr& expr);
  Value eval_name(const Expr& expr);
  Value eval_list(const Expr& expr);
  Value eval_dict(const Expr& expr);
  Value eval_slice(const Expr& expr);
  Value eval_logic(const Expr& expr);
  Value eval_compare(const Expr& expr);
  Value eval_call(const Expr& expr);

  Context context_;
  std::vector<Scope> scopes_;  // the innermost last
};

void Evaluator::append(Place place, std::string_view text, std::string& out) {
  if (out.size() + text.size() > kMaxOutputBytes) {
    context_.fail(place, str_cat("the rendered text is longer than ", kMaxOutputBytes >> 20, " MiB"));
    return;
  }
  if (context_.pay(place, static_cast<int64_t>(text.size()))) out += text;
}

Flow Evaluator::run_body(const Body& body, std::string& out) {
  for (const auto& node : body) {
    const Flow flow = run_node(*node, out);
    if (flow != Flow::kNext || context_.failed()) return flow;
  }
  return Flow::kNext;
}

Flow Evaluator::run_node(const Node& node, std::string& out) {
  if (!context_.step(node.place)) return Flow::kNext;
  switch (node.kind) {
    case NodeKind::kText:
      append(node.place, node.text, out);
      return Flow::kNext;
    case NodeKind::kPrint: {
      const Value value = eval(*node.expr);
      if (!context_.failed()) append(node.place, value.text(), out);
      return Flow::kNext;
    }
    case NodeKind::kIf:
      return run_if(node, out);
    case NodeKind::kFor:
      return run_for(node, out);
    case NodeKind::kSet:
      run_set(node);
      return Flow::kNext;
    case NodeKind::kSetBlock: {
      std::string captured;
      const Flow flow = run_body(node.bodies[0], captured);
      bind(node, Value(std::move(captured)));
      return flow;
    }
    case NodeKind::kBreak:
      return Flow::kBreak;
    case NodeKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Flow Evaluator::run_if(const Node& node, std::string& out) {
  for (size_t i = 0; i < node.conditions.size(); ++i) {
    const bool holds = eval(*node.conditions[i]).truth();
    if (context_.failed()) return Flow::kNext;
    if (holds) return run_body(node.bodies[i], out);
  }
  return node.bodies.size() > node.conditions.size() ? run_body(node.bodies.back(), out) : Flow::kNext;
}

Dict loop_attributes(const List& items, size_t i) {
  const int64_t at = static_cast<int64_t>(i), count = static_cast<int64_t>(items.size());
  return {{"index", Value(at + 1)},
          {"index0", Value(at)},
          {"first", Value(i == 0)},
          {"last", Value(at + 1 == count)},
          {"length", Value(count)},
          {"revindex", Value(count - at)},
          {"revindex0", Value(count - at - 1)},
          {"previtem", i > 0 ? items[i - 1] : Value::undefined("loop.previtem")},
          {"nextitem", at + 1 < count ? items[i + 1] : Value::undefined("loop.nextitem")}};
}

Flow Evaluator::run_for(const Node& node, std::string& out) {
  List items;
  const Value iterated = eval(*node.expr);
  if (context_.failed() || !iterate(iterated, node.place, context_, items)) return Flow::kNext;
  if (!node.conditions.empty()) {
    List kept;
    for (Value& item : items) {
      scopes_.emplace_back();
      bind(node, item);
      const bool keep = eval(*node.conditions[0]).truth();
      scopes_.pop_back();
      if (context_.failed()) return Flow::kNext;
      if (keep) kept.push_back(std::move(item));
    }
    items = std::move(kept);
  }
  if (items.empty()) return node.bodies.size() > 1 ? run_body(node.bodies[1], out) : Flow::kNext;
  const auto loop = std::make_shared<Namespace>();
  loop->read_only = true;
  for (size_t i = 0; i < items.size(); ++i) {
    loop->attributes = loop_attributes(items, i);
    scopes_.emplace_back();
    scopes_.back()["loop"] = Value(loop);
    bind(node, items[i]);
    context_.step(node.place, kStepsPerIteration);
    const Flow flow = context_.failed() ? Flow::kBreak : run_body(node.bodies[0], out);
    scopes_.pop_back();
    if (context_.failed() || flow == Flow::kBreak) break;
  }
  return Flow::kNext;
}

void Evaluator::bind(const Node& node, const Value& value) {
  if (node.names.size() == 1) {
    scopes_.back()[node.names[0]] = value;
    return;
  }
  List parts;
  if (!iterate(value, node.place, context_, parts)) return;
  if (parts.size() != node.names.size()) {
    context_.fail(node.place, str_cat("expected ", node.names.size(), " values to unpack, found ", parts.size()));
    return;
  }
  for (size_t i = 0; i < parts.size(); ++i) scopes_.back()[node.names[i]] = std::move(parts[i]);
}

void Evaluator::run_set(const Node& node) {
  Value value = eval(*node.expr);
  if (context_.failed()) return;
  if (node.text.empty()) return bind(node, value);
  Expr name;
  name.name = node.names[0];
  name.place = node.place;
  const Value target = eval_name(name);
  if (!target.is_namespace() || target.as_namespace().read_only) {
    context_.fail(node.place,
                  str_cat("cannot assign attribute ", node.text, ": ", node.names[0], " is not a namespace"));
    return;
  }
  if (value.is_namespace()) {
    context_.fail(node.place, "a namespace cannot hold a namespace");
    return;
  }
  Dict& attributes = target.as_namespace().attributes;
  const auto it =
      std::find_if(attributes.begin(), attributes.end(), [&](const auto& field) { return field.first == node.text; });
  if (it != attributes.end()) {
    it->second = std::move(value);
  } else {
    attributes.emplace_back(node.text, std::move(value));
  }
}

Value Evaluator::eval_name(const Expr& expr) {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    const auto it = scope->find(expr.name);
    if (it != scope->end()) return it->second;
  }
  return Value::undefined(expr.name);
}

Value Evaluator::eval_list(const Expr& expr) {
  List items;
  for (const ExprPtr& arg : expr.args) {
    items.push_back(eval(*arg));
    if (context_.failed()) return Value();
    if (items.back().is_namespace()) return context_.fail(expr.place, "a list cannot hold a namespace");
  }
  return context_.list(expr.place, std::move(items));
}

Value Evaluator::eval_dict(const Expr& expr) {
  Dict items;
  for (size_t i = 0; i < expr.args.size(); i += 2) {
    const Value key = eval(*expr.args[i]);
    Value value = eval(*expr.args[i + 1]);
    if (context_.failed()) return Value();
    if (!key.is_string())
      return context_.fail(expr.args[i]->place, str_cat("expected a string as key, found ", key.type_name()));
    if (value.is_namespace()) return context_.fail(expr.place, "a dict cannot hold a namespace");
    const auto it =
        std::find_if(items.begin(), items.end(), [&](const auto& field) { return field.first == key.as_string(); });
    if (it != items.end()) {
      it->second = std::move(value);
    } else {
      items.emplace_back(key.as_string(), std::move(value));
    }
  }
  if (!context_.pay(expr.place, static_cast<int64_t>(items.size() * sizeof(Dict::value_type)))) return Value();
  Value dict = Value::dict(std::move(items));
  return dict.depth() <= kMaxValueDepth ? dict : context_.fail(expr.place, "a dict is nested too deep");
}

Value Evaluator::eval_slice(const Expr& expr) {
  const Value object = eval(*expr.args[0]);
  Value bounds[3];
  for (int i = 0; i < 3; ++i) bounds[i] = expr.args[i + 1] ? eval(*expr.args[i + 1]) : Value(None{});
  return context_.failed() ? Value() : slice(object, bounds, expr.place, context_);
}

Value Evaluator::eval_logic(const Expr& expr) {
  Value left = eval(*expr.args[0]);
  if (context_.failed()) return Value();
  return left.truth() == (expr.name == "and") ? eval(*expr.args[1]) : left;
}

Value Evaluator::eval_compare(const Expr& expr) {
  Value left = eval(*expr.args[0]);
  for (size_t i = 0; i < expr.names.size() && !context_.failed(); ++i) {
    Value right = eval(*expr.args[i + 1]);
    if (context_.failed() || !compare(expr.names[i], left, right, expr.place, context_)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Value Evaluator::eval_call(const Expr& expr) {
  Call call{expr.name, expr.place, {}, {}};
  for (const ExprPtr& arg : expr.args) call.args.push_back(eval(*arg));
  for (const auto& [name, arg] : expr.named) call.named.emplace_back(name, eval(*arg));
  if (context_.failed()) return Value();
  switch (expr.kind) {
    case ExprKind::kFilter:
      return call_filter(call, context_);
    case ExprKind::kTest:
      return call_test(call, context_);
    case ExprKind::kMethod:
      return call_method(call, context_);
    default:
      return call_function(call, context_);
  }
}

Value Evaluator::eval(const Expr& expr) {
  if (!context_.step(expr.place)) return Value();
  switch (expr.kind) {
    case ExprKind::kLiteral:
      return expr.literal;
    case ExprKind::kName:
      return eval_name(expr);
    case ExprKind::kList:
      return eval_list(expr);
    case ExprKind::kDict:
      return eval_dict(expr);
    case ExprKind::kAttribute:
      return attribute(eval(*expr.args[0]), expr.name, expr.place, context_);
    case ExprKind::kIndex: {
      const Value object = eval(*expr.args[0]);
      return subscript(object, eval(*expr.args[1]), expr.place, context_);
    }
    case ExprKind::kSlice:
      return eval_slice(expr);
    case ExprKind::kUnary:
      return unary(expr.name, eval(*expr.args[0]), expr.place, context_);
    case ExprKind::kBinary: {
      if (expr.name == "and" || expr.name == "or") return eval_logic(expr);
      const Value left = eval(*expr.args[0]);
      return binary(expr.name, left, eval(*expr.args[1]), expr.place, context_);
    }
    case ExprKind::kCompare:
      return eval_compare(expr);
    case ExprKind::kChoose: {
      const bool holds = eval(*expr.args[1]).truth();
      if (context_.failed()) return Value();
      if (holds) return eval(*expr.args[0]);
      return expr.args[2] ? eval(*expr.args[2]) : Value::undefined("the inline if without else");
    }
    case ExprKind::kFilter:
    case ExprKind::kTest:
    case ExprKind::kMethod:
    case ExprKind::kCall:
      return eval_call(expr);
  }
  return Value();
}

}  // namespace

absl::StatusOr<std::string> render_template(const Body& body, Dict variables, int64_t max_steps) {
  return Evaluator(std::move(variables), max_steps).run(body);
}

}  // namespace moesaic::jinja
