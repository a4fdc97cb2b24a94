// SPDX-License-Identifier: Apache-2.0
// Dispatch: which table is chosen, and what it says of itself.
#include "support/delta_rule.hpp"
#include "support/kda_catch.hpp"

using namespace testing;
using kda::isa;

namespace {

// The environment variable that lowers the choice, put back at the end.
class wanted_isa {
 public:
  wanted_isa() {
    if (const char* old = std::getenv("KDA_ISA")) old_ = old, had_ = true;
    unset();
  }
  wanted_isa(const wanted_isa&) = delete;
  wanted_isa& operator=(const wanted_isa&) = delete;
  ~wanted_isa() { had_ ? set(old_) : unset(); }
  static void set(const std::string& value) { setenv("KDA_ISA", value.c_str(), 1); }
  static void unset() { unsetenv("KDA_ISA"); }

 private:
  std::string old_;
  bool had_ = false;
};

bool was_built(isa i) {
  for (const kda::built_kernels* b = test_kernels.built; b->isa != nullptr; ++b)
    if (std::string(b->isa) == kda::name(i)) return true;
  return false;
}

// What the choice must be if nothing above the limits may be taken, of those of this architecture; empty: nothing.
std::string best_up_to(std::initializer_list<isa> limits) {
  std::string best;
  for (const isa i : kda::all_isas) {
    bool allowed = i <= kda::best_isa() && was_built(i);
    for (const isa limit : limits) allowed = allowed && (i <= limit || !kda::is_of_this_architecture(limit));
    if (allowed) best = kda::name(i);
  }
  return best;
}

using some_spec = specs::glm;
template <class Tables> std::string isa_of(const Tables* tables) {
  return tables == nullptr ? "" : tables->template get<some_spec>().isa;
}

// Tables of no kernels, to make lists of.
template <isa I> const void* fake_table() {
  static kda::tables<some_spec> t{};
  t.isa = kda::name(I);
  return &t;
}

}  // namespace

TEST_CASE("the best table that was built and can run here is chosen", "[dispatch]") {
  const wanted_isa environment;
  CHECK(isa_of(kda::select(test_kernels)) == best_up_to({}));
  for (const isa highest : kda::all_isas) CHECK(isa_of(kda::select(test_kernels, highest)) == best_up_to({highest}));
}

TEST_CASE("KDA_ISA lowers the choice and never raises it", "[dispatch]") {
  const wanted_isa environment;
  for (const isa wanted : kda::all_isas) {
    CAPTURE(kda::name(wanted));
    environment.set(kda::name(wanted));
    CHECK(isa_of(kda::select(test_kernels)) == best_up_to({wanted}));
    for (const isa highest : kda::all_isas)
      CHECK(isa_of(kda::select(test_kernels, highest)) == best_up_to({highest, wanted}));
  }
}

TEST_CASE("a KDA_ISA that names no ISA is ignored", "[dispatch]") {
  const wanted_isa environment;
  for (const char* garbage :
       {"", "AVX2", "avx", "avx2 ", " avx2", "avx512bf16", "avx512f", "scala", "2", "best", "\n"}) {
    CAPTURE(garbage);
    environment.set(garbage);
    CHECK(isa_of(kda::select(test_kernels)) == best_up_to({}));
    CHECK(isa_of(kda::select(test_kernels, isa::scalar)) == best_up_to({isa::scalar}));
  }
}

TEST_CASE("an ISA is had exactly, or not at all", "[dispatch]") {
  wanted_isa environment;
  environment.set("scalar");  // does not concern an exact wish
  for (const isa wanted : kda::all_isas) {
    CAPTURE(kda::name(wanted));
    const bool can = wanted <= kda::best_isa() && was_built(wanted);
    CHECK(isa_of(kda::select_exactly(test_kernels, wanted)) == (can ? kda::name(wanted) : ""));
    CHECK(isa_of(kda::select_exactly(test_kernels_1x1, wanted)) == (can ? kda::name(wanted) : ""));
  }
}

TEST_CASE("a list gives the first table that may run, and nothing if there is none", "[dispatch]") {
  const wanted_isa environment;
  using list = kda::kernel_list<some_spec>;
  const kda::built_kernels gap[] = {
      {"avx512", fake_table<isa::avx512>}, {"scalar", fake_table<isa::scalar>}, {nullptr, nullptr}};
  CHECK(isa_of(kda::select(list{gap}, isa::avx2)) == "scalar");
  const kda::built_kernels unknown[] = {
      {"amx_bf16", fake_table<isa::avx512>}, {"scalar", fake_table<isa::scalar>}, {nullptr, nullptr}};
  CHECK(isa_of(kda::select(list{unknown})) == "scalar");  // what this version cannot judge is not taken
  CHECK(isa_of(kda::select(list{gap}, isa::scalar)) == "scalar");
  CHECK(kda::select_exactly(list{gap}, isa::avx2) == nullptr);
  const kda::built_kernels no_scalar[] = {
      {"avx512", fake_table<isa::avx512>}, {"avx2", fake_table<isa::avx2>}, {nullptr, nullptr}};
  CHECK(kda::select(list{no_scalar}, isa::scalar) == nullptr);
  CHECK(kda::select_exactly(list{no_scalar}, isa::scalar) == nullptr);
  const kda::built_kernels none[] = {{nullptr, nullptr}};
  CHECK(kda::select(list{none}) == nullptr);
  CHECK(kda::select_exactly(list{none}, isa::scalar) == nullptr);
}

TEST_CASE("tables say which ISA they are for and hold the calls of their options", "[dispatch]") {
  const auto* t = kda::select_exactly(test_kernels, current_isa());
  REQUIRE(t != nullptr);
  const auto& glm = t->get<specs::glm>();
  CHECK(std::string(glm.isa) == kda::name(current_isa()));
  CHECK((glm.prefill && glm.decode && glm.conv && glm.gate && glm.beta && glm.l2norm && glm.norm));
  const auto& given = t->get<specs::kda_given_key>();
  CHECK(std::string(given.isa) == kda::name(current_isa()));
  CHECK((given.prefill && given.decode && given.l2norm));
  CHECK((!given.conv && !given.gate && !given.beta && !given.norm));
  const auto& no_norm = t->get<specs::gdn_bounded>();
  CHECK((no_norm.conv && no_norm.gate && no_norm.beta && !no_norm.norm));
  const auto& no_decay = t->get<specs::delta_key>();
  CHECK((no_decay.prefill && no_decay.decode && !no_decay.gate));
}

TEST_CASE("the CPU is asked for everything an ISA uses", "[dispatch]") {
  CHECK(current_isa() <= kda::best_isa());
#if defined(__x86_64__)
  if (std::getenv("KDA_EMULATED")) CHECK(kda::best_isa() == current_isa());  // that CPU has the ISA and nothing newer
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
  CHECK(kda::best_isa() == (bf16 ? isa::avx512_bf16 : avx512 ? isa::avx512 : avx2 ? isa::avx2 : isa::scalar));
#elif defined(__aarch64__)
  CHECK(kda::best_isa() == isa::neon);
#endif
  for (const isa i : kda::all_isas)
    CHECK(kda::detail::rank(kda::name(i)) == (kda::is_of_this_architecture(i) ? static_cast<int>(i) : -1));
  CHECK(kda::is_of_this_architecture(kda::best_isa()));
}
