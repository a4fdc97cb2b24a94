// SPDX-License-Identifier: Apache-2.0
// One engine, several ISAs: the function table of a spec, the list of tables that were built, and the choice among
// them. The choice is baseline code; nothing of an ISA runs before the CPU has been asked.
//
//   glm.hpp           using glm = kda::spec<...>;   KDA_DECLARE_KERNELS(glm_kernels, glm)
//   glm_kernels.cpp   KDA_EXPORT_KERNELS(glm_kernels, glm)                       compiled once per ISA
//   CMakeLists.txt    kda_add_kernels(engine NAME glm_kernels SOURCE glm_kernels.cpp)
//   engine.cpp        const auto* k = kda::select(glm_kernels);   k->prefill({...}, workspace, kda::serial);
#pragma once
#include "args.hpp"
#include "cpu.hpp"
#include "executor.hpp"
#include "status.hpp"

#include <cstdlib>

namespace kda::inline v0 {

/// One kernel, compiled for one ISA: `status s = k->decode({...}, workspace);`
template <class Args> struct call {
  status (*function)(const Args&, const workspace&, const executor&, checking) = nullptr;

  KDA_INLINE status operator()(const Args& args, const workspace& w, const executor& e = serial,
                               checking c = checking::checked) const {
    return function(args, w, e, c);
  }
  /// False: the spec lacks an option that the kernel needs.
  KDA_INLINE constexpr explicit operator bool() const { return function != nullptr; }
};

/// The calls of kernels<Spec>, compiled for one ISA.
template <class Spec> struct table {
  const char* isa;
  call<delta_rule_args<Spec>> prefill;
  call<delta_rule_args<Spec>> decode;
  call<conv_args<Spec>> conv;
  call<gate_args<Spec>> gate;
  call<beta_args<Spec>> beta;
  call<l2norm_args<Spec>> l2norm;
  call<norm_args<Spec>> norm;
  call<step_args<Spec>> step;
};

/// The tables of all specs that one source file exports, for one ISA. With one spec its members are the tables's own.
template <class... Specs> struct tables : table<Specs>... {
  template <class Spec> [[nodiscard]] KDA_INLINE constexpr const table<Spec>& get() const { return *this; }
};

/// One entry of the list that kda_add_kernels() generates: best first, ended by a null name.
struct built_kernels {
  const char* isa;
  const void* (*table)();
};

/// What KDA_DECLARE_KERNELS declares: the list, and the specs it is for.
template <class... Specs> struct kernel_list { const built_kernels* built; };

namespace detail {
KDA_INLINE bool same_name(const char* a, const char* b) {
  for (; *a != '\0' && *a == *b; ++a, ++b) {
  }
  return *a == *b;
}
// Below 0: no ISA of this architecture, or of this version.
KDA_INLINE int rank(const char* isa_name) {
  for (const isa i : all_isas)
    if (is_of_this_architecture(i) && same_name(isa_name, name(i))) return static_cast<int>(i);
  return -1;
}
}  // namespace detail

/// The best table that was built and can run here, at most `highest`; null if there is none. The environment variable
/// KDA_ISA (scalar, neon, avx2, avx512, avx512_bf16) lowers it further; another value of it is ignored. So is an ISA of
/// another architecture in either.
template <class... Specs>
[[nodiscard]] KDA_INLINE const tables<Specs...>* select(kernel_list<Specs...> list, isa highest = newest_isa) {
  int limit = static_cast<int>(best_isa());
  if (is_of_this_architecture(highest) && static_cast<int>(highest) < limit) limit = static_cast<int>(highest);
  if (const char* wanted = std::getenv("KDA_ISA"); wanted != nullptr) {
    const int rank = detail::rank(wanted);
    if (rank >= 0 && rank < limit) limit = rank;
  }
  for (const built_kernels* b = list.built; b->isa != nullptr; ++b) {
    const int rank = detail::rank(b->isa);
    if (rank >= 0 && rank <= limit) return static_cast<const tables<Specs...>*>(b->table());
  }
  return nullptr;
}

/// The table of exactly this ISA, if it was built and can run here; null otherwise.
template <class... Specs>
[[nodiscard]] KDA_INLINE const tables<Specs...>* select_exactly(kernel_list<Specs...> list, isa wanted) {
  if (static_cast<int>(wanted) > static_cast<int>(best_isa())) return nullptr;
  for (const built_kernels* b = list.built; b->isa != nullptr; ++b)
    if (detail::rank(b->isa) == static_cast<int>(wanted)) return static_cast<const tables<Specs...>*>(b->table());
  return nullptr;
}

}  // namespace kda::inline v0

// Declared by both macros: different specs in the two are then an error of the compiler, not a table read as another.
#define KDA_SAME_SPECS(NAME, ...) kda::kernel_list<__VA_ARGS__> KDA_JOIN(NAME, specs)();

/// Declares kernel list NAME for the specs that follow.
#define KDA_DECLARE_KERNELS(NAME, ...)                         \
  KDA_SAME_SPECS(NAME, __VA_ARGS__)                            \
  extern "C" const kda::built_kernels KDA_JOIN(NAME, built)[]; \
  inline constexpr kda::kernel_list<__VA_ARGS__> NAME{KDA_JOIN(NAME, built)};
