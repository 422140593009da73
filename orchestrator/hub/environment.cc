#include "orchestrator/hub/environment.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "orchestrator/base/file.h"

namespace orrery::hub {
namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string FirstSet(std::initializer_list<std::string> values) {
  for (const std::string& value : values) {
    if (!value.empty()) return value;
  }
  return "";
}

std::string Below(const std::string& folder, const char* name) {
  return folder.empty() ? "" : folder + "/" + name;
}

std::string Trimmed(std::string text) {
  const auto is_space = [](unsigned char c) { return std::isspace(c) != 0; };
  text.erase(text.begin(), std::find_if_not(text.begin(), text.end(), is_space));
  text.erase(std::find_if_not(text.rbegin(), text.rend(), is_space).base(), text.end());
  return text;
}

bool IsTrue(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text == "1" || text == "ON" || text == "YES" || text == "TRUE";
}

std::string TokenFromFile(const std::string& path) {
  const auto content = ReadFile(path);
  return content.ok() ? Trimmed(*content) : "";
}

}  // namespace

HubEnvironment ReadHubEnvironment() {
  HubEnvironment environment;
  const std::string user_cache =
      FirstSet({Variable("XDG_CACHE_HOME"), Below(FirstSet({Variable("HOME"), "."}), ".cache")});
  const std::string home = FirstSet({Variable("HF_HOME"), Below(user_cache, "huggingface")});
  environment.cache =
      FirstSet({Variable("HF_HUB_CACHE"), Variable("HUGGINGFACE_HUB_CACHE"), Below(home, "hub")});
  environment.endpoint = FirstSet({Variable("HF_ENDPOINT"), environment.endpoint});
  while (environment.endpoint.ends_with('/')) environment.endpoint.pop_back();
  environment.token = Trimmed(FirstSet({Variable("HF_TOKEN"), Variable("HUGGING_FACE_HUB_TOKEN")}));
  if (environment.token.empty()) {
    environment.token = TokenFromFile(FirstSet({Variable("HF_TOKEN_PATH"), Below(home, "token")}));
  }
  environment.offline = IsTrue(Variable("HF_HUB_OFFLINE"));
  return environment;
}

}  // namespace orrery::hub
