// libcuda and libnvidia-ml in one, saying what the environment variable FAKE_CUDA_STATE asks for.
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

bool Is(const char* state) {
  const char* value = std::getenv("FAKE_CUDA_STATE");
  return value != nullptr && std::string(value) == state;
}

struct Memory {
  unsigned long long total, free, used;
};

}  // namespace

extern "C" {

int cuInit(unsigned) { return Is("none") ? 100 : Is("mismatch") ? 803 : 0; }
int cuDriverGetVersion(int* version) {
  *version = Is("old") ? 11040 : 12020;
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = Is("empty") ? 0 : 2;
  return 0;
}
int cuDeviceGet(int* device, int index) {
  *device = 40 + index;
  return 0;
}
int cuDeviceGetName(char* name, int size, int device) {
  std::strncpy(name, device == 40 ? "NVIDIA First" : "NVIDIA Second", static_cast<size_t>(size));
  return Is("broken") && device == 41 ? 999 : 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = size_t{80} << 30;
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : -1;
  return 0;
}

int nvmlInit_v2() { return Is("no_nvml") ? 9 : 0; }
int nvmlShutdown() { return 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  std::strncpy(text, "535.129.03", size);
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  static int devices[2];
  *device = &devices[index];
  return 0;
}
int nvmlDeviceGetMemoryInfo(void*, Memory* memory) {
  *memory = {80ull << 30, 60ull << 30, 20ull << 30};
  return 0;
}

}  // extern "C"
