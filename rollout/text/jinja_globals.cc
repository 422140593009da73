// Functions that every template can call by name.
#include <array>

#include "rollout/text/jinja_arguments.h"

namespace orrery::rollout::jinja {

namespace {

using Result = absl::StatusOr<Value>;

constexpr int64_t kMaxRange = 100000;  // MAX_RANGE of jinja2's sandbox

Result Range(Runtime& runtime, const Value&, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"start", "stop", "step"}, 1));
  ASSIGN_OR_RETURN(int64_t start, IntegerOr(bound[0], 0, "start"));
  ASSIGN_OR_RETURN(int64_t stop, IntegerOr(bound[1], start, "stop"));
  ASSIGN_OR_RETURN(const int64_t step, IntegerOr(bound[2], 1, "step"));
  if (bound[1] == nullptr) start = 0;
  if (step == 0) return InvalidInput("the step cannot be 0");
  std::vector<Value> numbers;
  int64_t at = start;
  while (step > 0 ? at < stop : at > stop) {
    if (static_cast<int64_t>(numbers.size()) == kMaxRange) {
      return InvalidInput("has more than {} elements", kMaxRange);
    }
    RETURN_IF_ERROR(runtime.budget.Allocate(sizeof(Value)));
    numbers.push_back(Value::Of(at));
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return MakeList(std::move(numbers));
}

// The entries of an optional mapping, then the named arguments.
absl::StatusOr<Map> MapFrom(Runtime& runtime, const Arguments& arguments) {
  Map map;
  if (arguments.positional.size() > 1) return InvalidInput("takes one mapping and named values");
  if (!arguments.positional.empty()) {
    const Value& given = arguments.positional[0];
    if (!given.Is(Kind::kMap)) return WrongType("the argument", "a mapping", given);
    map = given.map();
  }
  RETURN_IF_ERROR(runtime.budget.Allocate(map.size() * sizeof(Value) * 2));
  for (const auto& [name, value] : arguments.named) map.Set(name, value);
  return map;
}

Result Dict(Runtime& runtime, const Value&, const Arguments& arguments) {
  ASSIGN_OR_RETURN(Map map, MapFrom(runtime, arguments));
  return MakeMap(std::move(map));
}

Result NewNamespace(Runtime& runtime, const Value&, const Arguments& arguments) {
  auto space = std::make_shared<Namespace>();
  ASSIGN_OR_RETURN(space->variables, MapFrom(runtime, arguments));
  RETURN_IF_ERROR(runtime.budget.Allocate(256 + 128 * arguments.named.size()));
  runtime.namespaces.push_back(space);
  return Value::Of(std::move(space));
}

Result RaiseException(Runtime& runtime, const Value&, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"message"}, 1));
  ASSIGN_OR_RETURN(const std::string message, ToText(*bound[0], runtime.budget));
  return InvalidInput("the template refuses the conversation: {}", message);
}

Result StrftimeNow(Runtime& runtime, const Value&, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"format"}, 1));
  ASSIGN_OR_RETURN(const std::string_view format, AsText(*bound[0], "format"));
  const std::time_t now = runtime.now.value_or(std::time(nullptr));
  std::tm fields{};
  runtime.now ? gmtime_r(&now, &fields) : localtime_r(&now, &fields);
  std::array<char, 512> shown{};
  const size_t size =
      std::strftime(shown.data(), shown.size(), std::string(format).c_str(), &fields);
  if (size == 0 && !format.empty()) {
    return InvalidInput("the date format of {} bytes gives nothing, or more than {} bytes",
                        format.size(), shown.size());
  }
  return Value::Of(std::string(shown.data(), size));
}

}  // namespace

const std::vector<Builtin>& Globals() {
  static const auto& table = *new std::vector<Builtin>{
      {"range", Range},
      {"dict", Dict},
      {"namespace", NewNamespace},
      {"raise_exception", RaiseException},
      {"strftime_now", StrftimeNow},
  };
  return table;
}

}  // namespace orrery::rollout::jinja
