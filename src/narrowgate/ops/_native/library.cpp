// What the library says of itself: where it was built from, and which bodies this processor can run.

#include <cstdint>

#define NARROWGATE_PUBLIC extern "C" __attribute__((visibility("default")))

// SHA-256 of the sources, as CMakeLists.txt computes it.
NARROWGATE_PUBLIC const char* narrowgate_sources() { return NARROWGATE_SOURCES; }

// Names of the bodies compiled, best last, those that this processor can run first and then a bar:
// "baseline avx2 | avx512".
NARROWGATE_PUBLIC const char* narrowgate_bodies() {
#if defined(NARROWGATE_X86)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (avx512) return "baseline avx2 avx512 |";
  if (avx2) return "baseline avx2 | avx512";
  return "baseline | avx2 avx512";
#else
  return "baseline |";
#endif
}

// Whether the library was compiled with OpenMP.
NARROWGATE_PUBLIC int32_t narrowgate_has_openmp() {
#if defined(_OPENMP)
  return 1;
#else
  return 0;
#endif
}
