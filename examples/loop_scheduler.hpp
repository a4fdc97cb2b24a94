// SPDX-License-Identifier: Apache-2.0
// A continuous-batching scheduler. Each round makes one packed batch of all that runs: a token or some drafts of each
// request that decodes, and pieces of prompts as far as the round's budget of prompt tokens goes.
//
//   admit    waiting requests get a slot; now and then one that runs is put out, its state saved or dropped
//   plan     what each running request does this round, from which slot to which, with which checkpoints
//   call     step over all of it in any order (rolling windows apart: they are an option of the call), then once more to
//            commit the frozen drafts that were right
//   settle   outputs are taken, positions advance, checkpoints enter the cache; who is done is compared and leaves
//
// A state that was dropped is computed again, from the last checkpoint or from nothing: the prompt by prefill, what
// was decoded by decode, each token as before and so to the same bits.
#pragma once
#include "loop_solo.hpp"
#include "stopwatch.hpp"
#include "thread_pool.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace engine {

/// What happened, for the report.
struct loop_counts {
  index rounds = 0, calls = 0, sequences = 0, tokens = 0, most_sequences = 0, most_tokens = 0;
  index prompt_tokens = 0, decoded_tokens = 0, repeated_tokens = 0;
  index cache_hits = 0, cached_tokens = 0, checkpoints = 0;
  index saved = 0, dropped = 0;
  index drafted = 0, right = 0;
  double step_seconds = 0, solo_seconds = 0, worst_off_grid = 0;
};

class scheduler {
 public:
  static constexpr index most_running = 48, slots = 160, prompt_budget = 192;
  /// No multiple of the chunk grid: every other checkpoint lies within a chunk.
  static constexpr index checkpoint_interval = 40;

  scheduler(const kda::table<served>& kernels, thread_pool& threads, std::uint64_t seed)
      : kernels_(kernels), threads_(threads), seed_(seed), weights_(seed), random_(seed, 9, 0, 0) {
    for (index i = 0; i < threads.size(); ++i) solo_.emplace_back(kernels, weights_, seed);
  }

  [[nodiscard]] const loop_counts& counts() const { return counts_; }

  /// Serves requests [0, n); finished(i) after each round, when i are done. Throws a sentence that names request and
  /// token if an output differs from the solo run.
  template <class F> void serve(index n, F finished) {
    for (index arrived = 0, done = 0; done < n; finished(done)) {
      for (; arrived < n && std::ssize(waiting_) < most_running; ++arrived) arrive(arrived);
      ++counts_.rounds;
      admit();
      plan();
      call();
      pools_.check_ends();
      done += settle();
    }
    cache_.clear();
    if (pools_.free() != slots) throw std::runtime_error("a slot was lost");
  }

 private:
  using owner = std::unique_ptr<request>;

  /// What a running request does in this round; none: padding.
  struct work {
    request* r = nullptr;
    batch_entry entry{};
    index first_row = 0;
    index right = 0;  ///< tokens that count; the others are drafts that turn out wrong
    std::vector<std::int32_t> commit_checkpoints{};
  };
  /// A slot that this round's call fills.
  struct checkpoint {
    std::uint64_t stream;
    index position;
    std::int32_t slot;
  };

  // ---- admission ----------------------------------------------------------------------------------------------------

  void arrive(index id) {
    owner r = std::make_unique<request>(make_request(seed_, id));
    r->y.resize(static_cast<std::size_t>(r->total * shape::outputs));
    r->has_y.resize(static_cast<std::size_t>(r->total));
    waiting_.push_back(std::move(r));
  }

  void admit() {
    if (!running_.empty() && random_.one_in(3)) preempt();
    while (!waiting_.empty() && std::ssize(running_) < most_running) {
      const std::int32_t slot = take_slot();
      if (slot < 0) return;
      owner r = std::move(waiting_.front());
      waiting_.pop_front();
      r->slot = slot;
      if (!r->saved.empty()) pools_.restore(slot, std::exchange(r->saved, {}));
      running_.push_back(std::move(r));
    }
  }

  /// A free slot, if need be one of the cache's; -1: there is none.
  std::int32_t take_slot() {
    if (pools_.free() == 0 && !cache_.evict(counts_.rounds)) return -1;
    return pools_.take();
  }

  /// Puts out any request, as if somebody else needed its place.
  void preempt() {
    const auto victim = running_.begin() + random_.below(std::ssize(running_));
    owner r = std::move(*victim);
    running_.erase(victim);
    if (r->position > 0 && random_.one_in(2)) {
      r->saved = pools_.save(r->where());
      ++counts_.saved;
    } else {
      r->position = 0;
      ++counts_.dropped;
    }
    release(*r);
    waiting_.push_back(std::move(r));
  }

  void release(request& r) {
    if (r.slot >= 0) pools_.give_back(std::exchange(r.slot, -1));
    if (std::exchange(r.has_drafts, false))
      for (const std::int32_t s : r.drafts) pools_.give_back(s);
    r.accepted = 0;
  }

  // ---- plan ---------------------------------------------------------------------------------------------------------

  void plan() {
    work_.clear(), checkpoints_.clear();
    budget_ = prompt_budget;
    for (const owner& r : running_) {
      work w{.r = r.get()};
      w.entry.load = w.entry.store = r->where().state;
      if (r->position == 0) look_up(*r, w);
      w.entry.position = r->position, w.entry.has_initial_state = r->position > 0;
      if (r->position < r->prompt)
        plan_prompt(*r, w);
      else if (r->position < r->emitted)
        w.entry.tokens = w.right = 1 + random_.below(std::min(r->emitted - r->position, index{32}));
      else
        plan_decode(*r, w);
      const bool copies = w.entry.load != w.entry.store;  // without tokens too: then the state alone
      if (w.entry.tokens == 0 && !copies && (r->position == 0 || random_.one_in(2))) continue;
      w.entry.length = w.entry.tokens;
      plan_checkpoints(*r, w);
      work_.push_back(std::move(w));
    }
    for (index pads = random_.below(3); pads > 0; --pads) work_.push_back(padding());
    for (index i = std::ssize(work_); i-- > 1;)
      std::swap(work_[static_cast<std::size_t>(i)], work_[static_cast<std::size_t>(random_.below(i + 1))]);
  }

  /// The longest beginning whose state somebody has left: read where it is, written to the request's own slot.
  void look_up(request& r, work& w) {
    const bool fresh = r.emitted == 0;
    if (fresh) r.cuts.clear();
    const index most = std::min(std::max(r.emitted, r.prompt - 1), r.total - 1);
    for (index p = most / checkpoint_interval * checkpoint_interval; p > 0; p -= checkpoint_interval) {
      std::int32_t slot = -1;
      if (keeps_bits(r, p)) slot = cache_.find(r.own_stream(), p, counts_.rounds);
      if (slot < 0 && p <= r.shared && (r.cut_on_grid ? keeps_bits(r, p) : fresh))
        slot = cache_.find(r.group, p, counts_.rounds);
      if (slot < 0) continue;
      if (fresh && !r.cut_on_grid) r.cuts.push_back(p);
      w.entry.load = slot;
      r.position = p;
      return;
    }
  }
  /// Whether the request may go on from a state after p tokens and have the bits of one that never stopped there.
  static bool keeps_bits(const request& r, index p) { return p >= r.prompt || p % kda::chunk_tokens == 0; }

  void plan_prompt(request& r, work& w) {
    w.entry.mode = kda::mode::prefill;
    index end = r.prompt;
    if (!r.cut_on_grid) {
      const auto again = std::upper_bound(r.cuts.begin(), r.cuts.end(), r.position);
      if (again != r.cuts.end()) {
        end = *again;
      } else if (r.position >= r.emitted) {
        end = std::min(r.prompt, r.position + 1 + random_.below(96));
        if (end - r.position > budget_) end = r.position + budget_;
        if (end > r.position && end < r.prompt) r.cuts.push_back(end);
      }
    }
    if (end - r.position > budget_) end = (r.position + budget_) / kda::chunk_tokens * kda::chunk_tokens;
    w.entry.tokens = w.right = std::max(end - r.position, index{0});
    budget_ -= w.entry.tokens;
  }

  void plan_decode(request& r, work& w) {
    const bool keeps = r.style == speculating::keeping || r.style == speculating::rolling;
    const bool drafts = r.style == speculating::frozen || (keeps && take_drafts(r));
    const bool pauses = r.style != speculating::rolling && random_.one_in(6);  // its windows are of no use to others
    if (!drafts || pauses) {
      w.entry.tokens = w.right = 1;
      return;
    }
    w.entry.tokens = 1 + random_.below(std::min(r.total - r.position, most_drafts + 1));
    while (w.right < w.entry.tokens && !random_.one_in(4)) ++w.right;
    if (r.style == speculating::frozen) {
      w.entry.frozen = true;
    } else {
      w.entry.drafts = r.drafts, w.entry.accepted = r.accepted;
      // Once the state that it starts from is overwritten, or is not its own, the first token must be a known one.
      if (r.accepted > 0 || w.entry.load != r.slot) w.right = std::max(w.right, index{1});
    }
    counts_.drafted += w.entry.tokens, counts_.right += w.right;
  }
  /// Slots for the states of drafts, all or none.
  bool take_drafts(request& r) {
    if (r.has_drafts) return true;
    for (index j = 0; j <= most_drafts; ++j)
      if ((r.drafts[j] = take_slot()) < 0) {
        while (j-- > 0) pools_.give_back(r.drafts[j]);
        return false;
      }
    return r.has_drafts = true;
  }

  /// One entry for each multiple of the interval among the tokens; -1 where the state would be of no use.
  void plan_checkpoints(const request& r, work& w) {
    const index first = w.entry.position + 1, last = w.entry.position + (w.entry.frozen ? w.right : w.entry.tokens);
    auto& slots_of = w.entry.frozen ? w.commit_checkpoints : w.entry.checkpoints;
    for (index p = (first + checkpoint_interval - 1) / checkpoint_interval * checkpoint_interval; p <= last;
         p += checkpoint_interval) {
      const bool common = r.cut_on_grid && p <= r.shared;  // then the bits of one call, whoever continues
      const std::uint64_t stream = common ? r.group : r.own_stream();
      const bool useful = w.entry.drafts == nullptr && p < r.total && (common || keeps_bits(r, p)) &&
                          cache_.find(stream, p, counts_.rounds) < 0;
      const std::int32_t slot = useful ? take_slot() : -1;
      slots_of.push_back(slot);
      if (slot >= 0) checkpoints_.push_back({stream, p, slot});
    }
  }

  work padding() {
    work w;
    w.entry.tokens = w.entry.length = random_.below(6);
    w.entry.mode = random_.one_in(2) ? kda::mode::prefill : kda::mode::decode;
    w.entry.has_initial_state = random_.one_in(2);
    return w;
  }

  // ---- call ---------------------------------------------------------------------------------------------------------

  void call() {
    const auto rolls = [](const work& w) { return w.entry.drafts != nullptr && w.r->style == speculating::rolling; };
    const auto rolling = std::stable_partition(work_.begin(), work_.end(), [&](const work& w) { return !rolls(w); });
    batch_.clear(), commit_.clear();
    for (auto w = work_.begin(); w != rolling; ++w) {
      w->first_row = batch_.end_row();
      batch_.add(w->entry);
      commit_.add(commit_of(*w));
    }
    rolling_.clear(batch_.end_row());
    for (auto w = rolling; w != work_.end(); ++w) {
      w->first_row = rolling_.end_row();
      rolling_.add(w->entry);
    }
    const index T = rolling_.end_row();
    if (rows_.capacity() < T) rows_ = token_rows(T);
    for (const work& w : work_)
      for (index i = 0; i < w.entry.tokens; ++i) fill_row(w, i);
    rows_.poison_y(T);

    stopwatch clock;
    kda::step_args<served> args = rows_.arguments(T, weights_, pools_);
    const index ranks = random_.one_in(4) ? shape::H : 1;  // of tensor parallelism: a call for each one's heads
    for (const batch* b : {&batch_, &rolling_})
      for (index rank = 0; rank < ranks && b->size() > 0; ++rank) {
        args.heads = {rank * (shape::HV / ranks), shape::HV / ranks};
        step(args, *b);
      }
    args.heads = {};
    if (batch_.any_frozen()) {
      args.y = {}, args.output_gate = {};
      step(args, commit_);
    }
    counts_.step_seconds += clock.lap();
    const index sequences = std::ssize(work_);
    counts_.sequences += sequences, counts_.tokens += T;
    counts_.most_sequences = std::max(counts_.most_sequences, sequences);
    counts_.most_tokens = std::max(counts_.most_tokens, T);
  }
  void step(kda::step_args<served>& args, const batch& b) {
    args.modes = b.modes(), args.sequences = b.lists();
    require(kernels_.step(args, {scratch_.data(), std::ssize(scratch_)}, threads_.executor()));
    ++counts_.calls;
  }
  /// The same rows again, of which a frozen sequence's right ones are now stored. All others are padding.
  static batch_entry commit_of(const work& w) {
    batch_entry e{.tokens = w.entry.tokens};
    if (w.entry.frozen) {
      e.length = w.right, e.position = w.entry.position;
      e.load = w.entry.load, e.store = w.entry.store;
      e.checkpoints = w.commit_checkpoints;
    }
    return e;
  }
  void fill_row(const work& w, index i) {
    if (w.r == nullptr)
      rows_.poison(w.first_row + i);
    else
      rows_.fill(w.first_row + i, seed_, w.r->stream(w.entry.position + i), w.entry.position + i,
                 i < w.right ? 0 : 1 + random_.next());
  }

  // ---- settle -------------------------------------------------------------------------------------------------------

  /// Returns how many requests are done.
  index settle() {
    for (const work& w : work_) {
      if (w.r == nullptr)
        expect_zeros(w);
      else
        take_outputs(*w.r, w);
    }
    for (const checkpoint& c : checkpoints_) cache_.add(c.stream, c.position, c.slot, counts_.rounds);
    counts_.checkpoints += std::ssize(checkpoints_);

    const auto done =
        std::stable_partition(running_.begin(), running_.end(), [](const owner& r) { return r->position < r->total; });
    compare({std::make_move_iterator(done), std::make_move_iterator(running_.end())});
    const index n = running_.end() - done;
    running_.erase(done, running_.end());
    return n;
  }

  void expect_zeros(const work& w) const {
    for (index i = 0; i < w.entry.tokens; ++i)
      for (index c = 0; c < shape::outputs; ++c)
        if (rows_.y(w.first_row + i)[c] != 0) throw std::runtime_error("padding: an output is not zero");
  }

  void take_outputs(request& r, const work& w) {
    if (w.entry.load != w.entry.store) {
      ++counts_.cache_hits;
      counts_.cached_tokens += w.entry.position;
    }
    for (index i = 0; i < w.right; ++i) {
      const index t = w.entry.position + i;
      float* kept = r.y.data() + t * shape::outputs;
      const float* y = rows_.y(w.first_row + i);
      char& has = r.has_y[static_cast<std::size_t>(t)];
      if (has != 0 && std::memcmp(kept, y, shape::outputs * sizeof(float)) != 0)
        throw std::runtime_error(r.name() + ", token " + std::to_string(t) + ": not the same a second time");
      std::copy_n(y, shape::outputs, kept);
      ++(has != 0 ? counts_.repeated_tokens : t < r.prompt ? counts_.prompt_tokens : counts_.decoded_tokens);
      has = 1;
    }
    if (w.entry.drafts != nullptr && w.right > 0) {
      r.accepted = w.right;
      if (r.slot >= 0) pools_.give_back(std::exchange(r.slot, -1));
    }
    r.position = w.entry.position + w.right;
    r.emitted = std::max(r.emitted, r.position);
  }

  /// Each of them with its solo run, as many at a time as there are threads; then they leave.
  void compare(std::vector<owner> done) {
    stopwatch clock;
    std::vector<std::string> differences(done.size());
    std::vector<double> off_grid(done.size());
    threads_.for_each(std::ssize(solo_), [&](index runner) {
      for (auto i = static_cast<std::size_t>(runner); i < done.size(); i += solo_.size()) try {
          off_grid[i] = solo_[static_cast<std::size_t>(runner)].compare(*done[i], pools_.save(done[i]->where()));
        } catch (const std::exception& e) {
          differences[i] = e.what();
        }
    });
    for (std::size_t i = 0; i < done.size(); ++i) {
      if (!differences[i].empty()) throw std::runtime_error(differences[i]);
      counts_.worst_off_grid = std::max(counts_.worst_off_grid, off_grid[i]);
      release(*done[i]);
      cache_.forget(done[i]->own_stream());
    }
    counts_.solo_seconds += clock.lap();
  }

  const kda::table<served>& kernels_;
  thread_pool& threads_;
  std::uint64_t seed_;
  loop_weights weights_;
  random_numbers random_;
  slot_pools pools_{slots};
  prefix_cache cache_{pools_};
  std::deque<owner> waiting_;
  std::vector<owner> running_;
  std::vector<work> work_;
  std::vector<checkpoint> checkpoints_;
  index budget_ = 0;
  batch batch_{checkpoint_interval}, commit_{checkpoint_interval}, rolling_{checkpoint_interval, true};
  token_rows rows_{512};
  std::vector<char> scratch_ = std::vector<char>(static_cast<std::size_t>(kda::workspace_bytes(
      {.sequences = batch::most_sequences, .kept_states = batch::most_kept, .concurrency = threads_.size()})));
  std::vector<solo_run> solo_;
  loop_counts counts_;
};

}
