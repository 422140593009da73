// Who a command runs as, and what it may ask of the kernel.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "sandbox/protocol/error.h"

namespace orrery::sandbox {

struct User {
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;
  std::string home = "/";
};

// "", "name", "uid", "name:group", "uid:gid" as an image's User, by the sandbox's own /etc/passwd
// and /etc/group, which are read as text that anybody may have written.
Error FindUser(const std::string& wanted, User& user);

// Takes the user's ids and leaves no capability but `capabilities`, and those only to root.
Error DropPrivileges(const User& user, uint64_t capabilities);

}  // namespace orrery::sandbox
