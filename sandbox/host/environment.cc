#include "sandbox/host/environment.h"

#include <string_view>

namespace orrery::sandbox {
namespace {

std::string_view NameOf(std::string_view entry) { return entry.substr(0, entry.find('=')); }

void Set(std::vector<std::string>& env, const std::string& entry) {
  for (std::string& known : env) {
    if (NameOf(known) == NameOf(entry)) {
      known = entry;
      return;
    }
  }
  env.push_back(entry);
}

}  // namespace

std::vector<std::string> MergeEnvironment(const std::vector<std::string>& image,
                                          const std::vector<std::string>& request) {
  std::vector<std::string> env;
  for (const std::string& entry : image) Set(env, entry);
  for (const std::string& entry : request) Set(env, entry);
  return env;
}

}  // namespace orrery::sandbox
