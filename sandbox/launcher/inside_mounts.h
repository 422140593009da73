// What is mounted inside a sandbox, as an OCI runtime does it: /proc, /sys, /dev with terminals,
// shared memory and message queues; the kernel's own files masked or read-only.
#pragma once

#include "sandbox/protocol/descriptor.h"
#include "sandbox/protocol/error.h"
#include "sandbox/protocol/messages.h"

namespace orrery::sandbox {

// Made by the launcher, with privileges that no sandbox has: /dev's nodes and links. Each sandbox
// has its own: by inotify on a node that two share, one would see when the other opens it.
Error MakeDevices(Descriptor& mount);

// Makes a small tree of this mount namespace, in which nothing of the host is: the places for a new
// root, and the /proc and /sys without which the kernel lets no user namespace mount its own. What
// sandboxes begin from: a copy of it costs less than one of the host's mounts, and is sooner gone.
Error MakeBareTree();

// Runs in the new mount namespace: attaches the root, fills it and makes it "/". Nothing of the
// host's tree is reachable afterwards.
Error MountInside(const CreateRequest& request, int root, int devices);

// The last step: masks in /proc and /sys, and read-only parts. /proc/sys can be written before.
Error SealKernelFiles();

// Makes an attached folder the root and drops the old one with all that is mounted in it.
Error PivotTo(int root);

}  // namespace orrery::sandbox
