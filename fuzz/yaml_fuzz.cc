// Any bytes as a configuration file: a status or an experiment, and one that was read prints to a
// text that reads back to the same one.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "configs/checks.h"
#include "configs/yaml.h"
#include "orchestrator/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace orrery::configs;
  std::string_view text(reinterpret_cast<const char*>(data), size);
  // What follows a line "--set" is overrides, a line each.
  std::vector<std::string> overrides;
  if (const size_t mark = text.find("\n--set\n"); mark != std::string_view::npos) {
    std::string_view rest = text.substr(mark + 7);
    text = text.substr(0, mark + 1);
    while (!rest.empty() && overrides.size() < 8) {
      const size_t end = rest.find('\n');
      overrides.emplace_back(rest.substr(0, end));
      rest = end == std::string_view::npos ? "" : rest.substr(end + 1);
    }
  }
  const auto experiment = ParseExperiment(text, "fuzz.yaml", overrides);
  if (!experiment.ok()) {
    CHECK(!experiment.status().message().empty());
    return 0;
  }
  (void)CheckForTraining(*experiment);
  const std::string printed = PrintExperiment(*experiment);
  const auto again = ParseExperiment(printed, "printed.yaml");
  CHECK(again.ok()) << again.status() << "\n" << printed;
  CHECK(*again == *experiment) << printed;
  return 0;
}
