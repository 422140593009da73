// Sandboxes of this machine (sandbox.h). What lies where:
//
//   STATE/slots/K           which process has which ranges of ids (id_slots.h)
//   STATE/hosts/ID/owner    who owns the rest, for the sweep (ownership.h)
//   STATE/hosts/ID/skeleton the lowest layer of every root (places to mount on, localhost)
//   STATE/hosts/ID/uppers/  writable layers of every DiskBackend but kTmpfs
//   cgroup NAME/ID/...      in every hierarchy; NAME/ID/launcher-K holds the launchers
//
// The record of ownership is written and synced before the first of these is made, so that a sweep
// finds everything by ID, whenever its owner died.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "sandbox/sandbox.h"

namespace orrery::sandbox {

struct HostOptions {
  std::string state_folder = "/var/lib/orrery/sandboxes";
  std::string cgroup = "orrery";  // of all hosts of this machine
  DiskBackend disk = DiskBackend::kTmpfs;
  // Lets a host run without a limit that it cannot enforce, with a warning in warnings().
  bool allow_unenforced = false;
  int launchers = 0;  // 0: one for each core, at most 4
  // How many wait ready for each image and limits that were asked for lately (warm_pool.h).
  int warm_sandboxes = 0;
  // Mounts as on kernels before Linux 6.15, which have no other way (launcher/stage.h).
  bool staged_mounts = false;
  // How many empty sandboxes wait, whatever the image, of limits that were asked for before
  // (blank_pool.h), at most one for each 64 MiB that sandboxes may take: one takes about 1 MB of
  // memory. 0: none. They count as nothing in admission.
  int blanks = 256;
  // Admission: what sandboxes may take together. 0: three quarters of the machine's memory, all its
  // cores, its pid limit less 8192.
  int64_t max_sandboxes = 512;
  int64_t memory_bytes = 0;
  double cpus = 0;
  int64_t processes = 0;
  int64_t disk_bytes = 0;      // 0: nine tenths of what is free where the state folder lies
  int64_t max_waiting = 4096;  // creations in the queue before more are refused
};

// What DiskBackend::kAuto stands for with this state folder, which need not exist yet.
DiskBackend ChooseDisk(const std::string& state_folder);

// Sweeps what dead owners left, then begins. Root is required.
absl::StatusOr<std::unique_ptr<SandboxHost>> MakeLocalHost(const HostOptions& options);

// Removes everything of hosts whose process is dead: what MakeLocalHost does first. The number of
// hosts swept.
absl::StatusOr<int> SweepDeadHosts(const HostOptions& options);

}  // namespace orrery::sandbox
