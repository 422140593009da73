#include "sandbox/init/program.h"

#include <unistd.h>

#include <string_view>

namespace orrery::sandbox {
namespace {

constexpr std::string_view kDefaultPath =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

std::string_view Find(const std::vector<std::string>& env, std::string_view name) {
  for (const std::string& entry : env) {
    if (entry.size() > name.size() && entry.compare(0, name.size(), name) == 0 &&
        entry[name.size()] == '=') {
      return std::string_view(entry).substr(name.size() + 1);
    }
  }
  return {};
}

std::vector<char*> Pointers(std::vector<std::string>& values) {
  std::vector<char*> pointers;
  for (std::string& value : values) pointers.push_back(value.data());
  pointers.push_back(nullptr);
  return pointers;
}

Error Describe(int error, const std::string& program) {
  if (error == E2BIG) {
    return {E2BIG, program +
                       ": arguments and environment are too long; give a script through "
                       "standard input"};
  }
  return {error, program};
}

}  // namespace

Error RunProgram(const StartRequest& request, const User& user) {
  if (request.argv.empty() || request.argv[0].empty()) return {EINVAL, "no program is named"};
  std::vector<std::string> argv = request.argv, env = request.env;
  if (Find(env, "HOME").empty()) env.push_back("HOME=" + user.home);
  if (Find(env, "PATH").empty()) env.push_back("PATH=" + std::string(kDefaultPath));
  const std::string path(Find(env, "PATH"));
  const std::vector<char*> arguments = Pointers(argv), variables = Pointers(env);
  const std::string& program = request.argv[0];
  if (program.find('/') != std::string::npos) {
    ::execve(program.c_str(), arguments.data(), variables.data());
    return Describe(errno, program);
  }
  int error = ENOENT;
  for (std::string_view rest = path; !rest.empty();) {
    const size_t colon = rest.find(':');
    const std::string folder(rest.substr(0, colon));
    ::execve(((folder.empty() ? "." : folder) + "/" + program).c_str(), arguments.data(),
             variables.data());
    if (errno != ENOENT && errno != ENOTDIR) error = errno;
    if (errno == E2BIG || colon == std::string_view::npos) break;
    rest.remove_prefix(colon + 1);
  }
  return Describe(error, program);
}

}  // namespace orrery::sandbox
