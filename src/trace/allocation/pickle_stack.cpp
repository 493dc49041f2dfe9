#include "trace/allocation/pickle_stack.h"

#include <cinttypes>

namespace cachalot::trace {

const char* pickle_kind_name(PickleKind kind) {
  constexpr const char* kNames[] = {"None",  "bool", "int",   "int",  "int beyond 64 bits",
                                    "float", "str",  "bytes", "list", "tuple",
                                    "set",   "dict"};
  return kNames[static_cast<std::size_t>(kind)];
}

Status PickleStack::push(const PickleValue& value) {
  if (++pushes_ > kMaxPushes) {
    return Error::make(Code::kBadInput, "more than %zu values", kMaxPushes);
  }
  stack_.push_back(value);
  return {};
}

Status PickleStack::push_container(PickleKind kind, std::vector<PickleValue> items) {
  if (containers_.size() == kMaxContainers) {
    return Error::make(Code::kBadInput, "more than %zu containers", kMaxContainers);
  }
  if (kind == PickleKind::kDict && items.size() % 2 != 0) {
    return Error::make(Code::kBadInput, "a dict of %zu items, expected pairs", items.size());
  }
  PickleValue value;
  value.kind = kind;
  value.container = containers_.size();
  containers_.push_back(std::move(items));
  return push(value);
}

Status PickleStack::push_tuple(std::size_t count) {
  CACHALOT_TRY(expect(count));
  return push_container(PickleKind::kTuple, take(count));
}

Status PickleStack::push_marked(PickleKind kind) {
  CACHALOT_TRY_ASSIGN(const std::size_t count, take_mark());
  return push_container(kind, take(count));
}

Status PickleStack::duplicate() {
  CACHALOT_TRY(expect(1));
  return push(PickleValue(stack_.back()));
}

Status PickleStack::pop() {
  if (above_mark() == 0 && !marks_.empty()) {
    marks_.pop_back();
    return {};
  }
  CACHALOT_TRY(expect(1));
  stack_.pop_back();
  return {};
}

Status PickleStack::pop_marked() {
  CACHALOT_TRY_ASSIGN(const std::size_t count, take_mark());
  stack_.resize(stack_.size() - count);
  return {};
}

Status PickleStack::mark() {
  if (marks_.size() == kMaxMarks) {
    return Error::make(Code::kBadInput, "nested deeper than %zu marks", kMaxMarks);
  }
  marks_.push_back(stack_.size());
  return {};
}

Status PickleStack::extend(PickleKind kind, std::size_t count) {
  CACHALOT_TRY(expect(count + 1));
  const std::vector<PickleValue> items = take(count);
  const PickleValue& container = stack_.back();
  if (container.kind != kind) {
    return Error::make(Code::kBadInput, "items for a %s, expected a %s",
                       pickle_kind_name(container.kind), pickle_kind_name(kind));
  }
  if (kind == PickleKind::kDict && items.size() % 2 != 0) {
    return Error::make(Code::kBadInput, "%zu items for a dict, expected pairs", items.size());
  }
  std::vector<PickleValue>& into = containers_[container.container];
  into.insert(into.end(), items.begin(), items.end());
  return {};
}

Status PickleStack::extend_marked(PickleKind kind) {
  CACHALOT_TRY_ASSIGN(const std::size_t count, take_mark());
  return extend(kind, count);
}

Status PickleStack::remember(std::uint64_t place) {
  CACHALOT_TRY(expect(1));
  if (place > pushes_) {
    return Error::make(Code::kBadInput, "place %" PRIu64 " of the memo, expected at most %zu",
                       place, pushes_);
  }
  if (place >= memo_.size()) memo_.resize(place + 1);
  memo_[place] = stack_.back();
  return {};
}

Status PickleStack::recall(std::uint64_t place) {
  if (place >= memo_.size()) {
    return Error::make(Code::kBadInput, "place %" PRIu64 " of the memo, expected one below %zu",
                       place, memo_.size());
  }
  return push(memo_[place]);
}

Result<PickleValue> PickleStack::root() const {
  if (stack_.size() == 1 && marks_.empty()) return stack_.back();
  return Error::make(Code::kBadInput, "%zu values and %zu marks at the end, expected one value",
                     stack_.size(), marks_.size());
}

Status PickleStack::expect(std::size_t count) const {
  if (above_mark() >= count) [[likely]]
    return {};
  return Error::make(Code::kBadInput, "%zu values on the stack, expected %zu", above_mark(), count);
}

Result<std::size_t> PickleStack::take_mark() {
  if (marks_.empty()) return Error::make(Code::kBadInput, "no mark on the stack, expected one");
  const std::size_t count = above_mark();
  marks_.pop_back();
  return count;
}

std::vector<PickleValue> PickleStack::take(std::size_t count) {
  const auto begin = stack_.end() - static_cast<std::ptrdiff_t>(count);
  std::vector<PickleValue> items(begin, stack_.end());
  stack_.erase(begin, stack_.end());
  return items;
}

}  // namespace cachalot::trace
