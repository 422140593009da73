#include "rollout/text/jinja_eval.h"

#include <algorithm>

namespace orrery::rollout::jinja {

namespace {

constexpr int64_t kStepsOfTurn = 8;  // what a turn of a for costs beside its body
constexpr size_t kBytesOfCapturedScope = 512;

}  // namespace

const Value* Scope::Find(int name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent) {
    for (const auto& [known, value] : scope->variables) {
      if (known == name) return &value;
    }
  }
  return nullptr;
}

void Scope::Set(int name, Value value) {
  for (auto& [known, old_value] : variables) {
    if (known != name) continue;
    old_value = std::move(value);
    return;
  }
  variables.emplace_back(name, std::move(value));
}

Evaluator::Enter::Enter(Evaluator& evaluator, Scope* parent)
    : evaluator_(evaluator), previous_(evaluator.scope_), scope_(std::make_unique<Scope>()) {
  scope_->parent = parent;
  evaluator_.scope_ = scope_.get();
}

Evaluator::Enter::~Enter() {
  evaluator_.scope_ = previous_;
  if (scope_->captured) evaluator_.captured_scopes_.push_back(std::move(scope_));
}

// Namespaces, and scopes through macros, may hold themselves: emptied one by one, they go.
Evaluator::~Evaluator() {
  for (const auto& space : runtime_.namespaces) space->variables = Map();
  for (const auto& scope : captured_scopes_) scope->variables.clear();
}

absl::Status Evaluator::At(Position position, const absl::Status& status) const {
  return Annotate(status, ShowPlace(program_.template_name, position));
}

absl::StatusOr<std::string> Evaluator::Run(const Map& variables) {
  Enter root(*this, nullptr);
  FillRoot(variables, root.scope());
  RETURN_IF_ERROR(Execute(program_.body).status());
  return std::move(output_);
}

// A variable of the caller hides a function of the same name.
void Evaluator::FillRoot(const Map& variables, Scope& root) const {
  for (size_t i = 0; i < program_.names.size(); ++i) {
    const std::string& name = program_.names[i];
    if (const Value* value = variables.Find(name)) {
      root.Set(static_cast<int>(i), *value);
    } else if (const Builtin* builtin = FindGlobal(name)) {
      auto callable = std::make_shared<Callable>();
      callable->builtin = builtin;
      root.Set(static_cast<int>(i),
               Value::Of(std::shared_ptr<const Callable>(std::move(callable))));
    }
  }
}

Evaluator::Executed Evaluator::Execute(const Block& block) {
  const Budget::Nested nested(runtime_.budget);
  for (const Statement& statement : block) {
    RETURN_IF_ERROR(At(statement.position, nested.Check()));
    RETURN_IF_ERROR(At(statement.position, runtime_.budget.Step()));
    ASSIGN_OR_RETURN(const Flow flow,
                     std::visit([&](const auto& node) { return Execute(node, statement.position); },
                                statement.node));
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

absl::Status Evaluator::Print(std::string_view text, Position position) {
  if (text.size() > runtime_.budget.limits().max_output_bytes - output_.size()) {
    return At(position, Exhausted("the rendered text exceeds {} bytes",
                                  runtime_.budget.limits().max_output_bytes));
  }
  RETURN_IF_ERROR(At(position, runtime_.budget.Allocate(text.size())));
  output_ += text;
  return absl::OkStatus();
}

Evaluator::Executed Evaluator::Execute(const DataNode& node, Position position) {
  RETURN_IF_ERROR(Print(node.text, position));
  return Flow::kNext;
}

Evaluator::Executed Evaluator::Execute(const OutputNode& node, Position position) {
  ASSIGN_OR_RETURN(const Value value, Evaluate(*node.value));
  if (value.Is(Kind::kText)) {
    RETURN_IF_ERROR(Print(value.text(), position));
    return Flow::kNext;
  }
  ASSIGN_OR_RETURN(const std::string text,
                   At(node.value->position, ToText(value, runtime_.budget)));
  RETURN_IF_ERROR(Print(text, position));
  return Flow::kNext;
}

Evaluator::Executed Evaluator::Execute(const IfNode& node, Position) {
  for (const auto& [test, block] : node.branches) {
    ASSIGN_OR_RETURN(const Value value, Evaluate(*test));
    if (IsTrue(value)) return Execute(block);
  }
  return Execute(node.otherwise);
}

// The elements for which the condition of the loop holds.
absl::StatusOr<std::shared_ptr<const List>> Evaluator::LoopItems(const ForNode& node) {
  ASSIGN_OR_RETURN(const Value iterable, Evaluate(*node.iterable));
  ASSIGN_OR_RETURN(auto items, At(node.iterable->position, Iterate(iterable, runtime_.budget)));
  if (node.condition == nullptr) return items;
  std::vector<Value> kept;
  for (const Value& item : items->items) {
    Enter block(*this, scope_);
    RETURN_IF_ERROR(Assign(node.target, item));
    ASSIGN_OR_RETURN(const Value holds, Evaluate(*node.condition));
    if (IsTrue(holds)) kept.push_back(item);
  }
  RETURN_IF_ERROR(
      At(node.condition->position, runtime_.budget.Allocate(kept.size() * sizeof(Value))));
  ASSIGN_OR_RETURN(const Value list, At(node.iterable->position, MakeList(std::move(kept))));
  return list.shared_list();
}

Evaluator::Executed Evaluator::Execute(const ForNode& node, Position) {
  ASSIGN_OR_RETURN(auto items, LoopItems(node));
  if (items->items.empty()) {
    Enter block(*this, scope_);
    return Execute(node.otherwise);
  }
  return RunLoop(node, std::move(items));
}

// Each turn has variables of its own: what is set in a for is gone after it.
Evaluator::Executed Evaluator::RunLoop(const ForNode& node, std::shared_ptr<const List> items) {
  auto loop = std::make_shared<Loop>();
  loop->items = std::move(items);
  for (loop->index = 0; loop->index < loop->items->items.size(); ++loop->index) {
    RETURN_IF_ERROR(At(node.target.position, runtime_.budget.Step(kStepsOfTurn)));
    Enter block(*this, scope_);
    block.scope().Set(program_.loop_name, Value::Of(loop));
    RETURN_IF_ERROR(Assign(node.target, loop->items->items[loop->index]));
    ASSIGN_OR_RETURN(const Flow flow, Execute(node.body));
    if (flow == Flow::kBreak) break;
  }
  return Flow::kNext;
}

absl::Status Evaluator::Assign(const Target& target, Value value) {
  if (!target.parts.empty()) return Unpack(target, value);
  if (!target.attribute.empty()) return AssignAttribute(target, std::move(value));
  scope_->Set(target.name, std::move(value));
  return absl::OkStatus();
}

absl::Status Evaluator::AssignAttribute(const Target& target, Value value) {
  const Value* object = scope_->Find(target.name);
  if (object == nullptr || !object->Is(Kind::kNamespace)) {
    return At(target.position,
              InvalidInput("expected '{}' to be a namespace, whose attributes alone "
                           "can be set",
                           NameOf(target.name)));
  }
  RETURN_IF_ERROR(At(target.position, runtime_.budget.Allocate(sizeof(Value))));
  object->space().variables.Set(target.attribute, std::move(value));
  return absl::OkStatus();
}

absl::Status Evaluator::Unpack(const Target& target, const Value& value) {
  ASSIGN_OR_RETURN(const auto items, At(target.position, Iterate(value, runtime_.budget)));
  if (items->items.size() != target.parts.size()) {
    return At(target.position, InvalidInput("expected {} values to unpack, found {}",
                                            target.parts.size(), items->items.size()));
  }
  for (size_t i = 0; i < items->items.size(); ++i) {
    RETURN_IF_ERROR(Assign(target.parts[i], items->items[i]));
  }
  return absl::OkStatus();
}

Evaluator::Executed Evaluator::Execute(const SetNode& node, Position) {
  ASSIGN_OR_RETURN(Value value, Evaluate(*node.value));
  RETURN_IF_ERROR(Assign(node.target, std::move(value)));
  return Flow::kNext;
}

// What the block prints, as a text.
absl::StatusOr<std::string> Evaluator::Capture(const Block& block) {
  std::string outer = std::exchange(output_, std::string());
  const auto flow = Execute(block);
  std::string captured = std::exchange(output_, std::move(outer));
  RETURN_IF_ERROR(flow.status());
  return captured;
}

Evaluator::Executed Evaluator::Execute(const SetBlockNode& node, Position position) {
  Value value;
  {
    Enter block(*this, scope_);
    ASSIGN_OR_RETURN(std::string text, Capture(node.body));
    value = Value::Of(std::move(text));
    for (const auto& [filter, nodes] : node.filters) {
      ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(nodes));
      ASSIGN_OR_RETURN(value, ApplyFilter(filter, value, arguments, position));
    }
  }
  RETURN_IF_ERROR(Assign(node.target, std::move(value)));
  return Flow::kNext;
}

Evaluator::Executed Evaluator::Execute(const MacroNode& node, Position position) {
  // The scope now lives as long as the rendering.
  RETURN_IF_ERROR(At(position, runtime_.budget.Allocate(kBytesOfCapturedScope)));
  for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) scope->captured = true;
  auto callable = std::make_shared<Callable>();
  callable->macro = node.macro.get();
  callable->scope = scope_;
  scope_->Set(node.macro->name, Value::Of(std::shared_ptr<const Callable>(std::move(callable))));
  return Flow::kNext;
}

// In jinja2 the body is a function: what it sets stays inside.
Evaluator::Executed Evaluator::Execute(const GenerationNode& node, Position) {
  Enter block(*this, scope_);
  return Execute(node.body);
}

// The macro sees the variables of the place where it was defined, as they are now.
Evaluator::Result Evaluator::CallMacro(const Callable& callable, Arguments arguments,
                                       Position position) {
  const Macro& macro = *callable.macro;
  Enter block(*this, callable.scope);
  RETURN_IF_ERROR(BindParameters(macro, std::move(arguments), block.scope(), position));
  ASSIGN_OR_RETURN(std::string text, Capture(macro.body));
  return Value::Of(std::move(text));
}

// The place of a parameter of that name; the number of parameters where there is none.
size_t Evaluator::ParameterNumber(const Macro& macro, const std::string& name) const {
  size_t i = 0;
  while (i < macro.parameters.size() && NameOf(macro.parameters[i].first) != name) ++i;
  return i;
}

absl::Status Evaluator::BindParameters(const Macro& macro, Arguments arguments, Scope& scope,
                                       Position position) {
  const auto wrong = [&](std::string_view problem) {
    return At(position, InvalidInput("macro '{}' {}", macro.label, problem));
  };
  if (arguments.positional.size() > macro.parameters.size()) {
    return wrong(fmt::format("takes at most {} arguments, {} were given", macro.parameters.size(),
                             arguments.positional.size()));
  }
  std::vector<bool> given(macro.parameters.size(), false);
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    given[i] = true;
    scope.Set(macro.parameters[i].first, std::move(arguments.positional[i]));
  }
  for (auto& argument : arguments.named) {
    const size_t i = ParameterNumber(macro, argument.first);
    if (i == given.size()) return wrong(fmt::format("has no parameter '{}'", argument.first));
    if (given[i]) return wrong(fmt::format("is given the parameter '{}' twice", argument.first));
    given[i] = true;
    scope.Set(macro.parameters[i].first, std::move(argument.second));
  }
  return BindDefaults(macro, given, scope);
}

absl::Status Evaluator::BindDefaults(const Macro& macro, const std::vector<bool>& given,
                                     Scope& scope) {
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i]) continue;
    const int name = macro.parameters[i].first;
    Value value = Value::Missing(fmt::format("parameter '{}' was not given", NameOf(name)));
    if (macro.parameters[i].second != nullptr) {
      ASSIGN_OR_RETURN(value, Evaluate(*macro.parameters[i].second));
    }
    scope.Set(name, std::move(value));
  }
  return absl::OkStatus();
}

}  // namespace orrery::rollout::jinja
