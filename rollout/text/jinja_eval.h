// Runs a parsed template. Internal: jinja.h is the interface.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rollout/text/jinja_ast.h"
#include "rollout/text/jinja_builtins.h"

namespace orrery::rollout::jinja {

// Variables of one block: of the template, of one turn of a for, of one call of a macro. What is
// not here is looked for in the parent, when it is asked for.
struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<int, Value>> variables;
  bool captured = false;  // a macro was defined here or below and may outlive the block

  const Value* Find(int name) const;
  void Set(int name, Value value);
};

// One rendering, on one thread.
class Evaluator {
 public:
  // REQUIRES: the program outlives the evaluator.
  Evaluator(const Program& program, Runtime runtime)
      : program_(program), runtime_(std::move(runtime)) {}
  ~Evaluator();

  absl::StatusOr<std::string> Run(const Map& variables);

 private:
  using Result = absl::StatusOr<Value>;
  enum class Flow : uint8_t { kNext, kBreak, kContinue };
  using Executed = absl::StatusOr<Flow>;

  // Owns a scope for a block and makes it current; what macros captured outlives the block.
  class Enter {
   public:
    Enter(Evaluator& evaluator, Scope* parent);
    ~Enter();
    Scope& scope() { return *scope_; }

   private:
    Evaluator& evaluator_;
    Scope* const previous_;
    std::unique_ptr<Scope> scope_;
  };

  // Statements (jinja_eval.cc).
  Executed Execute(const Block& block);
  Executed Execute(const DataNode& node, Position position);
  Executed Execute(const OutputNode& node, Position position);
  Executed Execute(const IfNode& node, Position position);
  Executed Execute(const ForNode& node, Position position);
  Executed Execute(const SetNode& node, Position position);
  Executed Execute(const SetBlockNode& node, Position position);
  Executed Execute(const MacroNode& node, Position position);
  Executed Execute(const GenerationNode& node, Position position);
  Executed Execute(const BreakNode&, Position) { return Flow::kBreak; }
  Executed Execute(const ContinueNode&, Position) { return Flow::kContinue; }
  absl::StatusOr<std::shared_ptr<const List>> LoopItems(const ForNode& node);
  Executed RunLoop(const ForNode& node, std::shared_ptr<const List> items);
  absl::Status Assign(const Target& target, Value value);
  absl::Status AssignAttribute(const Target& target, Value value);
  absl::Status Unpack(const Target& target, const Value& value);
  absl::StatusOr<std::string> Capture(const Block& block);
  absl::Status Print(std::string_view text, Position position);
  Result CallMacro(const Callable& callable, Arguments arguments, Position position);
  absl::Status BindParameters(const Macro& macro, Arguments arguments, Scope& scope,
                              Position position);
  absl::Status BindDefaults(const Macro& macro, const std::vector<bool>& given, Scope& scope);
  size_t ParameterNumber(const Macro& macro, const std::string& name) const;
  void FillRoot(const Map& variables, Scope& root) const;

  // Expressions (jinja_eval_expression.cc).
  Result Evaluate(const Expression& expression);
  Result Evaluate(const LiteralNode& node, Position) { return node.value; }
  Result Evaluate(const NameNode& node, Position position);
  Result Evaluate(const ListNode& node, Position position);
  Result Evaluate(const MapNode& node, Position position);
  Result Evaluate(const NotNode& node, Position position);
  Result Evaluate(const SignNode& node, Position position);
  Result Evaluate(const BinaryNode& node, Position position);
  Result Evaluate(const LogicNode& node, Position position);
  Result Evaluate(const ConcatNode& node, Position position);
  Result Evaluate(const CompareNode& node, Position position);
  Result Evaluate(const ConditionalNode& node, Position position);
  Result Evaluate(const AttributeNode& node, Position position);
  Result Evaluate(const ItemNode& node, Position position);
  Result Evaluate(const SliceNode& node, Position position);
  Result Evaluate(const CallNode& node, Position position);
  Result Evaluate(const FilterNode& node, Position position);
  Result Evaluate(const TestNode& node, Position position);
  absl::StatusOr<Arguments> EvaluateArguments(const ArgumentNodes& nodes);
  Result ApplyFilter(const BuiltinName& filter, const Value& input, const Arguments& arguments,
                     Position position);
  // The built-in with the place and `label` before its errors.
  Result CallBuiltin(const Builtin& builtin, std::string_view kind, const Value& input,
                     const Arguments& arguments, Position position);

  // "template:3:14: " before the text of an error.
  absl::Status At(Position position, const absl::Status& status) const;
  template <typename T>
  absl::StatusOr<T> At(Position position, absl::StatusOr<T> result) const {
    if (!result.ok()) return At(position, result.status());
    return result;
  }

  const std::string& NameOf(int name) const { return program_.names[static_cast<size_t>(name)]; }

  const Program& program_;
  Runtime runtime_;
  Scope* scope_ = nullptr;
  std::vector<std::unique_ptr<Scope>> captured_scopes_;
  std::string output_;  // of the block that is captured, or of the template
};

}  // namespace orrery::rollout::jinja
