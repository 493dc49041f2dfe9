// The stack, marks and memo of the machine that a pickle is a program for.
//
// 1. A mark is a height of the stack; nothing below the last one is popped, but by what takes the mark.
// 2. A container is filled after it was pushed and remembered: it is known by a number, so that all places that
//    hold it see what is added.
// 3. The memo is not larger than what was ever pushed.
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "trace/allocation/pickle_value.h"

namespace cachalot::trace {

// @errors of all: kBadInput, what was found and expected
class PickleStack {
 public:
  static constexpr std::size_t kMaxPushes = std::size_t{1} << 28;
  static constexpr std::size_t kMaxContainers = std::size_t{1} << 26;
  static constexpr std::size_t kMaxMarks = 1024;

  Status push(const PickleValue& value);
  Status push_container(PickleKind kind, std::vector<PickleValue> items);
  Status push_tuple(std::size_t count);  // of the topmost values
  Status push_marked(PickleKind kind);   // a container of what is above the mark
  Status duplicate();
  Status pop();  // a value, or a mark
  Status pop_marked();

  Status mark();
  // Adds the topmost `count` values to the container below them; what is above the mark.
  Status extend(PickleKind kind, std::size_t count);
  Status extend_marked(PickleKind kind);

  Status remember(std::uint64_t place);
  Status remember_next() { return remember(memo_.size()); }
  Status recall(std::uint64_t place);

  // At the end: the only value.
  Result<PickleValue> root() const;
  PickleDocument::Containers take_containers() { return std::move(containers_); }

 private:
  std::size_t above_mark() const { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }
  Status expect(std::size_t count) const;
  Result<std::size_t> take_mark();  // how many values are above it
  std::vector<PickleValue> take(std::size_t count);

  std::size_t pushes_ = 0;
  std::vector<PickleValue> stack_;
  std::vector<std::size_t> marks_;
  std::vector<PickleValue> memo_;
  PickleDocument::Containers containers_;
};

}  // namespace cachalot::trace
