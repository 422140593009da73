// The functions that templates find ready: filters, tests, methods of texts and mappings, and
// global functions. Each is a row in a table; names that are not there are errors of the template.
#pragma once

#include <ctime>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rollout/text/jinja_value.h"

namespace orrery::rollout::jinja {

// Arguments of a call, evaluated.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// What built-ins may touch of the rendering that calls them.
struct Runtime {
  Budget budget;
  std::optional<std::time_t>
      now;  // of strftime_now, shown in UTC; absent: the clock, in local time
  std::vector<std::shared_ptr<Namespace>> namespaces;  // all that were made; emptied at the end
};

// `input` is what the filter or test is applied to, the object of the method, or undefined.
struct Builtin {
  std::string_view name;
  absl::StatusOr<Value> (*function)(Runtime& runtime, const Value& input,
                                    const Arguments& arguments);
};

const Builtin* FindFilter(std::string_view name);
const Builtin* FindTest(std::string_view name);
const Builtin* FindGlobal(std::string_view name);
// Of a text or a mapping; null where there is none.
const Builtin* FindMethod(const Value& object, std::string_view name);

// "there is no filter 'x'; known are default, first, ...".
std::string NoSuchFilter(std::string_view name);
std::string NoSuchTest(std::string_view name);

// Arguments in the order of the parameters, null where one was not given; an error for one too
// many, an unknown name, one given twice, or fewer than `required`.
absl::StatusOr<std::vector<const Value*>> Bind(const Arguments& arguments,
                                               std::initializer_list<std::string_view> parameters,
                                               size_t required = 0);

// Where the tables live.
const std::vector<Builtin>& Filters();      // jinja_filters.cc
const std::vector<Builtin>& Tests();        // jinja_tests.cc
const std::vector<Builtin>& TextMethods();  // jinja_methods.cc
const std::vector<Builtin>& MapMethods();
const std::vector<Builtin>& Globals();  // jinja_globals.cc

}  // namespace orrery::rollout::jinja
