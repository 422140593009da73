// str() and repr() of values.
#include "rollout/text/jinja_text.h"
#include "rollout/text/jinja_value.h"

namespace orrery::rollout::jinja {

namespace {

absl::Status AppendRepr(const Value& value, std::string& out, Budget& budget);

absl::Status AppendListRepr(const List& list, std::string& out, Budget& budget) {
  const bool view = list.kind == ListKind::kView;
  if (view) out += fmt::format("{}(", list.view_name);
  const bool tuple = list.kind == ListKind::kTuple;
  out += tuple ? '(' : '[';
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out += ", ";
    RETURN_IF_ERROR(AppendRepr(list.items[i], out, budget));
  }
  if (tuple && list.items.size() == 1) out += ',';
  out += tuple ? ')' : ']';
  if (view) out += ')';
  return absl::OkStatus();
}

absl::Status AppendMapRepr(const Map& map, std::string& out, Budget& budget) {
  out += '{';
  bool first = true;
  for (const auto& [key, value] : map.entries()) {
    if (!first) out += ", ";
    first = false;
    RETURN_IF_ERROR(AppendRepr(key, out, budget));
    out += ": ";
    RETURN_IF_ERROR(AppendRepr(value, out, budget));
  }
  out += '}';
  return absl::OkStatus();
}

absl::Status AppendScalarRepr(const Value& value, std::string& out) {
  switch (value.kind()) {
    case Kind::kUndefined:
      out += "Undefined";
      break;
    case Kind::kNone:
      out += "None";
      break;
    case Kind::kBool:
      out += value.boolean() ? "True" : "False";
      break;
    case Kind::kInteger:
      out += fmt::to_string(value.integer());
      break;
    case Kind::kBigInteger:
      out += value.digits();
      break;
    case Kind::kFloat:
      out += ReprFloat(value.floating());
      break;
    case Kind::kText:
      out += value.markup() ? "Markup(" + ReprText(value.text()) + ")" : ReprText(value.text());
      break;
    default:
      return InvalidInput("a value of type {} cannot be printed", value.type_name());
  }
  return absl::OkStatus();
}

absl::Status AppendRepr(const Value& value, std::string& out, Budget& budget) {
  RETURN_IF_ERROR(budget.Step());
  const size_t before = out.size();
  if (value.Is(Kind::kMap)) {
    RETURN_IF_ERROR(AppendMapRepr(value.map(), out, budget));
  } else if (value.Is(Kind::kList) && value.list().kind != ListKind::kGenerator) {
    RETURN_IF_ERROR(AppendListRepr(value.list(), out, budget));
  } else {
    RETURN_IF_ERROR(AppendScalarRepr(value, out));
    RETURN_IF_ERROR(budget.Allocate(out.size() - before));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ToText(const Value& value, Budget& budget) {
  if (value.Is(Kind::kUndefined)) return std::string();
  if (value.Is(Kind::kText)) {
    RETURN_IF_ERROR(budget.Allocate(value.text().size()));
    return value.text();
  }
  std::string out;
  RETURN_IF_ERROR(AppendRepr(value, out, budget));
  return out;
}

}  // namespace orrery::rollout::jinja
