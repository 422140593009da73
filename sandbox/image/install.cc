#include "sandbox/image/install.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <ctime>
#include <mutex>
#include <set>
#include <thread>

#include "orchestrator/base/file.h"
#include "orchestrator/base/hash.h"
#include "orchestrator/base/status.h"
#include "sandbox/image/digest.h"
#include "sandbox/image/settle.h"
#include "sandbox/image/tree_index.h"
#include "sandbox/image/unpack.h"
#include "sandbox/image/view.h"

namespace orrery::sandbox::image {
namespace {

int ThreadsOf(const ImportOptions& options) {
  constexpr int kMostThreads = 8;
  if (options.threads > 0) return options.threads;
  const auto cpus = static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(cpus, 1, kMostThreads);
}

std::string Compress(const std::string& text) {
  std::string compressed(ZSTD_compressBound(text.size()), '\0');
  compressed.resize(
      ZSTD_compress(compressed.data(), compressed.size(), text.data(), text.size(), 1));
  return compressed;
}

// A layer on its way into the store; its folder is deleted unless it was published.
class NewLayer {
 public:
  NewLayer(const StoreFiles& files, const UnpackOptions& options)
      : files_(files), options_(options) {}
  ~NewLayer() {
    if (!staging_.empty()) RemoveTree(staging_).IgnoreError();
  }
  NewLayer(const NewLayer&) = delete;
  NewLayer& operator=(const NewLayer&) = delete;

  absl::Status Unpack(const LayerSource& source) {
    ASSIGN_OR_RETURN(staging_, files_.MakeStaging());
    if (::mkdir((staging_ + "/fs").c_str(), 0755) != 0) {
      return ErrnoStatus("cannot make", staging_ + "/fs", errno);
    }
    ASSIGN_OR_RETURN(root_, OpenFolder(staging_ + "/fs"));
    if (::fchmod(root_.get(), 0755) != 0) return ErrnoStatus("cannot open", staging_, errno);
    ASSIGN_OR_RETURN(ByteSource bytes, source.open());
    ASSIGN_OR_RETURN(facts_, UnpackLayer(std::move(bytes), root_.get(), options_));
    return CheckDigests(source);
  }

  const std::string& diff_id() const { return facts_.diff_id; }

  // From staging to its place; below are the trees of the layers it lies on.
  absl::Status Publish(const std::string& chain, const std::vector<std::string>& below) {
    RETURN_IF_ERROR(SettleLayer(root_.get(), below, facts_.tree));
    ASSIGN_OR_RETURN(const TreeIndex index, IndexTree(root_.get(), &facts_.tree.hashes));
    LayerRecord record;
    record.chain = chain;
    record.diff_id = facts_.diff_id;
    record.index_hash = Sha256(index.text);
    record.bytes = index.bytes;
    record.files = index.files;
    record.notes = facts_.notes;
    RETURN_IF_ERROR(WriteFileAtomically(staging_ + "/index.zst", Compress(index.text)));
    RETURN_IF_ERROR(WriteFileAtomically(staging_ + "/layer.json", WriteLayerJson(record)));
    if (::syncfs(root_.get()) != 0) return ErrnoStatus("cannot sync", staging_, errno);
    if (::rename(staging_.c_str(), files_.layer(chain).c_str()) != 0) {
      return ErrnoStatus("cannot rename onto", files_.layer(chain), errno);
    }
    staging_.clear();
    return SyncPath(files_.layers());
  }

 private:
  absl::Status CheckDigests(const LayerSource& source) const {
    if (!source.blob_digest.empty() && source.blob_digest != facts_.blob_digest) {
      return absl::DataLossError(fmt::format("its bytes have the digest {} instead of {}",
                                             facts_.blob_digest, source.blob_digest));
    }
    if (source.diff_id.empty() && facts_.padded) {
      return absl::DataLossError("the tar ends in the middle of a block: it is cut off");
    }
    if (!source.diff_id.empty() && source.diff_id != facts_.diff_id) {
      return absl::DataLossError(
          fmt::format("unpacked it has the digest {}, the image's config says {}", facts_.diff_id,
                      source.diff_id));
    }
    return absl::OkStatus();
  }

  const StoreFiles& files_;
  const UnpackOptions& options_;
  std::string staging_;
  Fd root_;
  LayerFacts facts_;
};

bool Exists(const std::string& path) {
  struct stat status;
  return ::lstat(path.c_str(), &status) == 0;
}

// The layers of one image, made by several threads.
class Chain {
 public:
  Chain(const StoreFiles& files, const NewImage& image, const ImportOptions& options)
      : files_(files), image_(image), threads_(ThreadsOf(options)) {
    unpack_.limits = options.limits;
    unpack_.drop_devices = options.drop_devices;
    unpack_.squash_owners = options.squash_owners;
    unpack_.threads = std::max(1, threads_ - 1);
    max_bytes_ = options.limits.max_image_bytes;
    if (options.progress)
      unpack_.progress = [this, &options](int64_t bytes) { Tell(options, bytes); };
  }

  absl::StatusOr<std::vector<std::string>> Make() {
    std::vector<std::thread> threads;
    const size_t count = std::min<size_t>(image_.layers.size(), static_cast<size_t>(threads_));
    for (size_t i = 0; i < count; ++i) threads.emplace_back([this] { Work(); });
    for (std::thread& thread : threads) thread.join();
    if (!status_.ok()) return status_;
    return chains_;
  }

 private:
  // Layers are taken in order, so that the one all others wait for is always being worked on.
  void Work() {
    while (true) {
      size_t i = 0;
      {
        const std::lock_guard lock(mutex_);
        if (!status_.ok() || next_ == image_.layers.size()) return;
        i = next_++;
      }
      const absl::Status status = MakeLayer(i);
      if (status.ok()) continue;
      const std::lock_guard lock(mutex_);
      if (status_.ok()) {
        status_ = Annotate(
            status, fmt::format("{}: layer {} of {}", image_.what, i + 1, image_.layers.size()));
      }
      changed_.notify_all();
    }
  }

  // With a diff id the chain is known beforehand: a layer that stands is not made, and one that
  // another process makes is waited for.
  absl::Status MakeLayer(size_t i) {
    const LayerSource& source = image_.layers[i];
    const std::string expected = ExpectedChain(i);
    Fd lock;
    if (!expected.empty()) {
      ASSIGN_OR_RETURN(lock, LockFile(files_.layer_lock(expected), LockMode::kExclusive));
      if (Exists(files_.layer(expected))) return Stand(i, expected);
    }
    NewLayer layer(files_, unpack_);
    if (const absl::Status status = layer.Unpack(source); !status.ok()) {
      if (absl::IsDataLoss(status) && source.done) source.done();  // its bytes are of no use
      return status;
    }
    std::vector<std::string> below;
    RETURN_IF_ERROR(WaitForBelow(i, &below));
    const std::string chain =
        expected.empty() ? ChainId(i == 0 ? "" : chains_[i - 1], layer.diff_id()) : expected;
    if (expected.empty()) {
      ASSIGN_OR_RETURN(lock, LockFile(files_.layer_lock(chain), LockMode::kExclusive));
      if (Exists(files_.layer(chain))) return Stand(i, chain);
    }
    RETURN_IF_ERROR(layer.Publish(chain, below));
    return Stand(i, chain);
  }

  std::string ExpectedChain(size_t i) const {
    std::string chain;
    for (size_t k = 0; k <= i; ++k) {
      if (image_.layers[k].diff_id.empty()) return "";
      chain = ChainId(chain, image_.layers[k].diff_id);
    }
    return chain;
  }

  absl::Status Stand(size_t i, const std::string& chain) {
    std::vector<std::string> below;
    RETURN_IF_ERROR(WaitForBelow(i, &below));
    ASSIGN_OR_RETURN(const LayerRecord record, ReadLayer(files_, chain));
    if (image_.layers[i].done) image_.layers[i].done();
    const std::lock_guard lock(mutex_);
    bytes_ += record.bytes;
    if (bytes_ > max_bytes_) {
      return Exhausted("the image has more than the {} bytes allowed; raise max_image_bytes",
                       max_bytes_);
    }
    chains_.push_back(chain);
    changed_.notify_all();
    return absl::OkStatus();
  }

  absl::Status WaitForBelow(size_t i, std::vector<std::string>* below) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !status_.ok() || chains_.size() >= i; });
    if (!status_.ok()) return status_;
    for (size_t k = 0; k < i; ++k) below->push_back(files_.layer_tree(chains_[k]));
    return absl::OkStatus();
  }

  void Tell(const ImportOptions& options, int64_t bytes) {
    const std::lock_guard lock(progress_mutex_);
    const std::string what = fmt::format("{} of {} layers", chains_done(), image_.layers.size());
    options.progress({what, bytes, -1});
  }

  size_t chains_done() {
    const std::lock_guard lock(mutex_);
    return chains_.size();
  }

  const StoreFiles& files_;
  const NewImage& image_;
  const int threads_;
  UnpackOptions unpack_;
  int64_t max_bytes_ = 0;

  std::mutex progress_mutex_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t next_ = 0;
  int64_t bytes_ = 0;
  std::vector<std::string> chains_;  // published, lowest first
  absl::Status status_;
};

absl::StatusOr<ImageSpec> SpecOf(const StoreFiles& files, const ImageConfig& config,
                                 const std::vector<std::string>& chains,
                                 std::vector<std::string>* notes) {
  ImageSpec spec;
  spec.config = config;
  for (const std::string& chain : chains) {
    ASSIGN_OR_RETURN(const LayerRecord layer, ReadLayer(files, chain));
    spec.diff_ids.push_back(layer.diff_id);
    notes->insert(notes->end(), layer.notes.begin(), layer.notes.end());
  }
  return spec;
}

// Records are written under the image's own lock: their temporary names are the process's.
absl::Status WriteRecords(const StoreFiles& files, const ImageRecord& record,
                          const std::string& name) {
  ASSIGN_OR_RETURN(const Fd lock, LockFile(files.locks() + "/records", LockMode::kExclusive));
  ASSIGN_OR_RETURN(const Fd lease, LockFile(files.lease(record.id), LockMode::kShared));
  if (!Exists(files.image(record.id))) RETURN_IF_ERROR(WriteImage(files, record));
  if (name.empty()) return absl::OkStatus();
  return WriteName(files, {name, record.id});
}

struct Machine {
  int number;  // e_machine, of the ELF specification and its processor supplements
  const char* name;
};
constexpr Machine kMachines[] = {{62, "amd64"},    {183, "arm64"}, {3, "386"},     {40, "arm"},
                                 {243, "riscv64"}, {22, "s390x"},  {21, "ppc64le"}};

std::string ArchitectureOfProgram(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  unsigned char header[20];
  if (!file.ok() || ::read(file.get(), header, sizeof header) != sizeof header) return "";
  if (std::string_view(reinterpret_cast<char*>(header), 4) !=
      "\x7f"
      "ELF")
    return "";
  const bool big_endian = header[5] == 2;
  const int machine = big_endian ? header[18] * 256 + header[19] : header[19] * 256 + header[18];
  for (const Machine& known : kMachines) {
    if (known.number == machine) return known.name;
  }
  return fmt::format("elf-machine-{}", machine);
}

}  // namespace

std::string DetectArchitecture(const std::vector<std::string>& layer_trees) {
  const LayerView view(layer_trees);
  for (const char* path : {"bin/sh", "bin/bash", "usr/bin/env", "bin/busybox", "bin/ls",
                           "usr/bin/python3", "sbin/init"}) {
    const auto found = view.Follow(path);
    if (!found.has_value() || !S_ISREG(found->status.st_mode)) continue;
    const std::string architecture = ArchitectureOfProgram(found->host_path);
    if (!architecture.empty()) return architecture;
  }
  return "";
}

absl::StatusOr<std::vector<std::string>> InstallLayers(const StoreFiles& files,
                                                       const NewImage& image,
                                                       const ImportOptions& options) {
  if (image.layers.empty()) return InvalidInput("{}: an image without layers", image.what);
  if (static_cast<int64_t>(image.layers.size()) > options.limits.max_layers) {
    return Exhausted("{}: {} layers, more than the {} allowed; raise max_layers", image.what,
                     image.layers.size(), options.limits.max_layers);
  }
  return Chain(files, image, options).Make();
}

absl::StatusOr<ImageRecord> FinishImage(const StoreFiles& files, const NewImage& image,
                                        const std::vector<std::string>& chains) {
  ImageRecord record;
  record.chains = chains;
  record.config = image.config;
  record.notes = image.notes;
  std::vector<std::string> trees;
  for (const std::string& chain : chains) trees.push_back(files.layer_tree(chain));
  const std::string detected = DetectArchitecture(trees);
  if (record.config.architecture.empty()) {
    record.config.architecture = detected.empty() ? HostArchitecture() : detected;
  } else if (!detected.empty() && detected != record.config.architecture) {
    record.notes.push_back(fmt::format("the config says {}, its programs are for {}",
                                       record.config.architecture, detected));
    record.config.architecture = detected;
  }
  ASSIGN_OR_RETURN(const ImageSpec spec,
                   SpecOf(files, record.config, record.chains, &record.notes));
  record.id = image.id.empty() ? DigestOf(WriteConfig(spec)) : image.id;
  record.created = static_cast<int64_t>(std::time(nullptr));
  RETURN_IF_ERROR(WriteRecords(files, record, image.name));
  return record;
}

}  // namespace orrery::sandbox::image
