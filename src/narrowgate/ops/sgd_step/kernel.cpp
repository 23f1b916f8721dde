// One SGD step: the definition is reference.py, whose operations and order these are.

#include "../_native/weights.h"

// sgd_step/native.py has the same fields in the same order; every number is rounded to FP32 there.
struct NarrowgateSgd {
  unsigned char* const* buffers;  // only with momentum
  float lr;
  float momentum;
  float decay;
  int32_t mode;  // what moves the weight: Momentum
  int32_t decays;
};

namespace {

enum Momentum : int32_t { kNone = 0, kPlain = 1, kNesterov = 2 };

template <Momentum mode, bool decays>
void update(const NarrowgateSgd& s, int64_t tensor, int64_t start, int count, float* __restrict w,
            const float* __restrict grads) {
  f32* __restrict buffer = nullptr;
  if (mode != kNone) buffer = reinterpret_cast<f32*>(s.buffers[tensor]) + start;
  for (int i = 0; i < count; ++i) {
    float g = grads[i];
    if (decays) g = g + w[i] * s.decay;
    if (mode != kNone) {
      const float b = buffer[i] * s.momentum + g;
      buffer[i] = b;
      g = mode == kNesterov ? g + b * s.momentum : b;
    }
    w[i] = w[i] - g * s.lr;
  }
}

template <Momentum mode>
void walk_with(const NarrowgateWeights& lists, const NarrowgateSgd& s) {
  walk(lists, [&s](int64_t tensor, int64_t start, int count, float* w, const float* grads) {
    if (s.decays) {
      update<mode, true>(s, tensor, start, count, w, grads);
    } else {
      update<mode, false>(s, tensor, start, count, w, grads);
    }
  });
}

}  // namespace

NARROWGATE_KERNEL(narrowgate_sgd_step_)
(const NarrowgateWeights* lists, const NarrowgateSgd* settings) {
  const NarrowgateSgd s = *settings;
  if (s.mode == kNone) {
    walk_with<kNone>(*lists, s);
  } else if (s.mode == kPlain) {
    walk_with<kPlain>(*lists, s);
  } else {
    walk_with<kNesterov>(*lists, s);
  }
}
