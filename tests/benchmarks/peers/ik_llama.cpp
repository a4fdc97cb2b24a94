// SPDX-License-Identifier: Apache-2.0
// ik_llama.cpp's kernels behind two plain C functions; compiled together with the checkout that KDA_IK_LLAMA_DIR names.
//
// q, k, v, and g of KDA: [N, H, T, D], fp32; beta (logits: the kernels apply the sigmoid), and g of GDN: [N, T, H];
// state [N, H, K, V], read and written in place; out [N, T, H, D].
#include <cstddef>
#include <cstdint>

extern "C" {

// As declared in iqk_kda.cpp and iqk_mul_mat.cpp.
bool iqk_kda(std::int32_t head_dim, std::int32_t heads, std::int32_t gqa_ratio, std::int32_t repeat_type,
             std::int32_t tokens, std::int32_t sequences, std::size_t v_token, std::size_t v_head,
             std::size_t v_sequence, const std::size_t* g_strides, const std::size_t* beta_strides, const float* q,
             const float* k, const float* v, const float* g, const float* beta, const float* state_in, float* out,
             float* state_out, float* saved, std::int32_t every, std::int32_t thread, std::int32_t threads);
bool iqk_fused_delta_net(int head_dim, int heads, int gqa_ratio, int repeat_type, int tokens, int sequences,
                         std::size_t v_token, std::size_t v_head, std::size_t v_sequence, const float* q,
                         const float* k, const float* v, const float* g, const float* beta, const float* state_in,
                         float* out, float* state_out, float* saved, int every, int thread, int threads);

[[gnu::visibility("default")]] int peer_kda(int N, int T, int H, int D, const float* q, const float* k, const float* v,
                                            const float* g, const float* beta, float* state, float* out, int threads) {
  const std::size_t t = static_cast<std::size_t>(T), h = static_cast<std::size_t>(H), f = sizeof(float);
  const std::size_t token = static_cast<std::size_t>(D) * f, head = t * token, sequence = h * head;  // bytes
  const std::size_t g_strides[] = {token, f, head, sequence}, beta_strides[] = {f, h * f, f, t * h * f};
  int right = 1;
#pragma omp parallel for num_threads(threads) reduction(&& : right)
  for (int i = 0; i < threads; ++i)
    right = right && iqk_kda(D, H, 1, 0, T, N, token, head, sequence, g_strides, beta_strides, q, k, v, g, beta, state,
                             out, state, nullptr, 0, i, threads);
  return right;
}

[[gnu::visibility("default")]] int peer_gdn(int N, int T, int H, int D, const float* q, const float* k, const float* v,
                                            const float* g, const float* beta, float* state, float* out, int threads) {
  const std::size_t token = static_cast<std::size_t>(D), head = static_cast<std::size_t>(T) * token,
                    sequence = static_cast<std::size_t>(H) * head;  // floats
  int right = 1;
#pragma omp parallel for num_threads(threads) reduction(&& : right)
  for (int i = 0; i < threads; ++i)
    right = right && iqk_fused_delta_net(D, H, 1, 0, T, N, token, head, sequence, q, k, v, g, beta, state, out, state,
                                         nullptr, 0, i, threads);
  return right;
}
}
