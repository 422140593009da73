// Installing a system call filter in this process and all that come from it.
#pragma once

#include <string>

#include "sandbox/protocol/error.h"

namespace orrery::sandbox {

// `filter`: struct sock_filter[] as bytes. REQUIRES: no_new_privs, or CAP_SYS_ADMIN.
Error InstallFilter(const std::string& filter);

}  // namespace orrery::sandbox
