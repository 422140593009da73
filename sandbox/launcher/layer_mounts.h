// Idmapped mounts of image layers, kept for the next sandbox of the same range: making and
// dissolving one costs more than mounting the overlay. The longest unused go first, so that layers
// of removed images are let go of.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <utility>

#include "sandbox/launcher/id_maps.h"
#include "sandbox/launcher/stage.h"
#include "sandbox/protocol/descriptor.h"
#include "sandbox/protocol/error.h"

namespace orrery::sandbox {

class LayerMounts {
 public:
  LayerMounts(IdMaps* id_maps, Stage* stage) : id_maps_(id_maps), stage_(stage) {}

  // A read-only mount of the folder, its owners shown from `id_base` on. Valid until the
  // next but kMost calls.
  Error Get(const std::string& folder, uint32_t id_base, int& mount);

 private:
  static constexpr size_t kMost = 1024;
  using Key = std::pair<std::string, uint32_t>;
  struct Entry {
    StagedMount mount;
    std::list<Key>::iterator use;
  };

  IdMaps* id_maps_;
  Stage* stage_;
  std::list<Key> uses_;  // latest first
  std::map<Key, Entry> mounts_;
};

}  // namespace orrery::sandbox
