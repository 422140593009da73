// A small Jinja for chat templates: the part of jinja2 3.1 that the templates of Qwen, Llama,
// SmolLM and DeepSeek use, rendering the same bytes as transformers does (trim_blocks,
// lstrip_blocks, loop controls, its tojson, raise_exception, strftime_now and {% generation %}).
//
// Not there, and an error when a template is parsed: include, import, extends, block, call, filter
// blocks, raw, recursive for. Known differences from jinja2: integers are of 64 bits (larger ones
// are kept and printed, not computed with); a `for ... if` decides on all elements before its first
// turn; format strings ("%s" % x, str.format) are not there; case mapping is Unicode's simple one.
//
// A Template is immutable: any number of threads may render it at once. Errors name template, line
// and column. A hostile template ends in an error (jinja_budget.h).
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "rollout/text/jinja_budget.h"
#include "rollout/text/jinja_value.h"

namespace orrery::rollout::jinja {

struct Program;

class Template {
 public:
  // `name` stands before the place in errors, usually the file.
  static absl::StatusOr<Template> Parse(std::string_view source, std::string name);

  // `now` fixes strftime_now (shown in UTC), so that a run renders the same text whenever it is
  // repeated; without it the clock and the local time zone count, as in transformers.
  absl::StatusOr<std::string> Render(const Map& variables, const Limits& limits = {},
                                     std::optional<std::time_t> now = std::nullopt) const;

 private:
  explicit Template(std::shared_ptr<const Program> program) : program_(std::move(program)) {}

  std::shared_ptr<const Program> program_;
};

}  // namespace orrery::rollout::jinja
