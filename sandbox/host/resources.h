// What a host's sandboxes need and share. LocalSandbox and LocalHost know each other by this alone.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "sandbox/cgroup/cgroup.h"
#include "sandbox/disk/project_quota.h"
#include "sandbox/host/admission.h"
#include "sandbox/host/id_slots.h"
#include "sandbox/host/launcher_process.h"
#include "sandbox/host/live_sandboxes.h"
#include "sandbox/host/local_host.h"
#include "sandbox/host/loop_images.h"
#include "sandbox/seccomp/filter.h"

namespace orrery::sandbox {

struct HostResources {
  HostOptions options;
  Hierarchies hierarchies;
  std::string folder;  // STATE/hosts/ID
  std::string cgroup;  // NAME/ID
  SeccompFilters seccomp;
  std::string skeleton;  // the lowest layer: mount points that an image may lack, /etc/hosts
  int num_cpus = 1;
  std::unique_ptr<IdSlots> slots;
  std::unique_ptr<LoopImages> loop_images;  // of DiskBackend::kLoop
  std::unique_ptr<ProjectQuota> projects;   // of DiskBackend::kProjectQuota
  std::vector<std::unique_ptr<LauncherProcess>> launchers;
  std::unique_ptr<LauncherProcess> root_launcher;  // of blanks' roots; none without blanks
  std::unique_ptr<Admission> admission;
  std::atomic<uint64_t> next_sandbox{0};
  LiveSandboxes live;
};

}  // namespace orrery::sandbox
