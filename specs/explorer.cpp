#include "explorer.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "state_store.h"

namespace cachalot::specs {

namespace {

constexpr std::uint32_t kNobody = 0xffffffff;

class Explorer : public Sink {
 public:
  Explorer(const Model& model, const Search& search) : model_(model), search_(search) {}

  Outcome run() {
    const auto begin = std::chrono::steady_clock::now();
    visit(initial_state(model_));
    std::uint32_t level_end = 1;
    for (current_ = 0; current_ < store_.size() && outcome_.violation.empty(); ++current_) {
      if (current_ == level_end) {
        ++outcome_.depth;
        level_end = static_cast<std::uint32_t>(store_.size());
      }
      if (store_.size() > search_.most_states) break;
      expand();
    }
    outcome_.is_complete = outcome_.violation.empty() && current_ == store_.size();
    outcome_.states = store_.size();
    outcome_.steps = targets_.size();
    if (outcome_.is_complete) outcome_.has_cycle = !is_acyclic();
    if (!outcome_.violation.empty()) write_schedule();
    outcome_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return std::move(outcome_);
  }

  void step(const State& next, const Label& label) override {
    if (outcome_.violation.empty()) targets_.push_back(visit(next));
    if (search_.count_steps) ++outcome_.taken[std::string(label.actor) + " " + label.format];
  }

 private:
  std::uint32_t visit(const State& state) {
    const auto [index, is_new] = store_.insert(state);
    if (!is_new) return index;
    parents_.push_back(store_.size() == 1 ? kNobody : current_);
    if (state.wrong_bytes != 0) {
      report(index, "the reader is handed bytes that are not those of h" +
                        std::to_string(state.wrong_bytes));
    } else if (!search_.only_wrong_bytes) {
      if (const char* wrong = check_state(model_, state)) report(index, wrong);
    }
    return index;
  }

  void report(std::uint32_t index, const std::string& what) {
    outcome_.violation = what;
    violated_ = index;
  }

  void expand() {
    const State state = store_.get(current_);
    first_target_.push_back(targets_.size());
    all_steps(model_, state, *this);
    if (targets_.size() != first_target_.back() || !outcome_.violation.empty()) return;
    ++outcome_.ends;
    if (search_.only_wrong_bytes) return;
    if (const char* wrong = check_end(model_, state)) report(current_, wrong);
  }

  // Takes away states that nothing leads to, until none is left or only cycles are.
  bool is_acyclic() {
    first_target_.push_back(targets_.size());
    std::vector<std::uint32_t> incoming(store_.size());
    for (const std::uint32_t target : targets_) ++incoming[target];
    std::vector<std::uint32_t> ready;
    for (std::uint32_t i = 0; i < incoming.size(); ++i) {
      if (incoming[i] == 0) ready.push_back(i);
    }
    std::size_t removed = 0;
    while (!ready.empty()) {
      const std::uint32_t index = ready.back();
      ready.pop_back();
      ++removed;
      for (std::uint64_t t = first_target_[index]; t < first_target_[index + 1]; ++t) {
        if (--incoming[targets_[t]] == 0) ready.push_back(targets_[t]);
      }
    }
    return removed == store_.size();
  }

  // Takes each step of the way again, this time to see what it was.
  class Finder : public Sink {
   public:
    explicit Finder(const State& wanted) : wanted_(wanted) {}
    void step(const State& next, const Label& label) override {
      if (text_.empty() && std::memcmp(&next, &wanted_, sizeof next) == 0) text_ = write(label);
    }
    const std::string& text() const { return text_; }

   private:
    static std::string write(const Label& label) {
      char what[160];
      const int* v = label.values;
      std::snprintf(what, sizeof what, label.format, v[0], v[1], v[2], v[3]);
      char line[200];
      std::snprintf(line, sizeof line, "%-2s %s", label.actor, what);
      return line;
    }

    const State& wanted_;
    std::string text_;
  };

  void write_schedule() {
    for (std::uint32_t at = violated_; parents_[at] != kNobody; at = parents_[at]) {
      const State next = store_.get(at);
      Finder finder(next);
      all_steps(model_, store_.get(parents_[at]), finder);
      outcome_.schedule.insert(outcome_.schedule.begin(), finder.text());
    }
  }

  const Model& model_;
  const Search search_;
  StateStore store_;
  std::vector<std::uint32_t> parents_;
  std::vector<std::uint64_t> first_target_;
  std::vector<std::uint32_t> targets_;
  std::uint32_t current_ = 0;
  std::uint32_t violated_ = 0;
  Outcome outcome_;
};

}  // namespace

Outcome explore(const Model& model, const Search& search) {
  return Explorer(model, search).run();
}

}  // namespace cachalot::specs
