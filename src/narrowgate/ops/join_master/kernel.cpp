// Join halves and remainders to FP32 masters: the definition is reference.py.

#include "../_native/floats.h"
#include "../_native/units.h"

namespace {

template <typename Join>
void join_all(const unsigned char* halves, const unsigned char* remainders, unsigned char* masters,
              int64_t count, int threads, const Join& join) {
  int64_t first[2];
  for_units(1, &count, first, threads, [&](int64_t, int64_t start, int64_t size) {
    const u16* __restrict half = reinterpret_cast<const u16*>(halves) + start;
    const i16* __restrict rest = reinterpret_cast<const i16*>(remainders) + start;
    f32* __restrict master = reinterpret_cast<f32*>(masters) + start;
    for (int64_t i = 0; i < size; ++i) master[i] = join(half[i], rest[i]);
  });
}

}  // namespace

NARROWGATE_KERNEL(narrowgate_join_master_)
(const unsigned char* halves, const unsigned char* remainders, unsigned char* masters,
 int64_t count, int32_t format, int32_t threads) {
  if (format == kBf16) {
    join_all(halves, remainders, masters, count, threads,
             [](uint32_t half, int32_t rest) { return join_bf16(half, rest); });
  } else {
    join_all(halves, remainders, masters, count, threads,
             [](uint32_t half, int32_t rest) { return join_fp16(half, rest); });
  }
}
