// Where tests find real data, which is not part of the repository: $ORRERY_DATA, else
// ../shared/data beside the source tree. Empty where the file is in neither: the test is skipped.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace orrery {

inline std::string RealDataPath(const std::string& name) {
  const char* folder = std::getenv("ORRERY_DATA");
  const std::string root =
      folder != nullptr ? folder : std::string(ORRERY_SOURCE_DIR) + "/../shared/data";
  const std::string path = root + "/" + name;
  return std::filesystem::exists(path) ? path : "";
}

}  // namespace orrery
