// One AdamW or Adam step: the definition is reference.py, whose operations and order these are.

#include "../_native/weights.h"

// adamw_step/native.py has the same fields in the same order; every number is rounded to FP32 there.
struct NarrowgateAdamW {
  unsigned char* const* exp_avgs;
  unsigned char* const* exp_avg_sqs;
  unsigned char* const* steps;  // per tensor: where its count lies
  const float* advanced;        // per tensor: its count after this step
  const float* roots;           // per tensor: sqrt(bias correction of the second moment)
  const float* sizes;           // per tensor: lr / bias correction of the first moment
  float keep_m, take_m, keep_v, take_v;
  float eps;
  float decay;
  int32_t mode;  // what decays: Decay
};

namespace {

enum Decay : int32_t { kNone = 0, kWeight = 1, kGradient = 2 };

template <Decay decay>
void update(const NarrowgateAdamW& s, int64_t tensor, int64_t start, int count,
            float* __restrict w, const float* __restrict grads) {
  f32* __restrict exp_avg = reinterpret_cast<f32*>(s.exp_avgs[tensor]) + start;
  f32* __restrict exp_avg_sq = reinterpret_cast<f32*>(s.exp_avg_sqs[tensor]) + start;
  const float root = s.roots[tensor], size = s.sizes[tensor];
  for (int i = 0; i < count; ++i) {
    float g = grads[i];
    if (decay == kGradient) g = g + w[i] * s.decay;
    const float m = exp_avg[i] * s.keep_m + g * s.take_m;
    const float v = exp_avg_sq[i] * s.keep_v + (g * g) * s.take_v;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    const float denominator = __builtin_sqrtf(v) / root + s.eps;
    const float kept = decay == kWeight ? w[i] * s.decay : w[i];
    w[i] = kept - (m / denominator) * size;
  }
}

}  // namespace

NARROWGATE_KERNEL(narrowgate_adamw_step_)
(const NarrowgateWeights* lists, const NarrowgateAdamW* settings) {
  const NarrowgateAdamW s = *settings;
  for (int64_t i = 0; i < lists->n; ++i) std::memcpy(s.steps[i], s.advanced + i, sizeof(float));
  walk(*lists, [&s](int64_t tensor, int64_t start, int count, float* w, const float* grads) {
    if (s.mode == kNone) {
      update<kNone>(s, tensor, start, count, w, grads);
    } else if (s.mode == kWeight) {
      update<kWeight>(s, tensor, start, count, w, grads);
    } else {
      update<kGradient>(s, tensor, start, count, w, grads);
    }
  });
}
