#include "transfer/strided/strided.h"

#include <algorithm>

namespace cachalot::transfer {
namespace {

constexpr std::uint64_t kMost = ~std::uint64_t{0} >> 1;

// False: beyond 63 bits.
bool multiply(std::uint64_t a, std::uint64_t b, std::uint64_t& product) {
  return !__builtin_mul_overflow(a, b, &product) && product <= kMost;
}

bool add(std::uint64_t a, std::uint64_t b, std::uint64_t& sum) {
  return !__builtin_add_overflow(a, b, &sum) && sum <= kMost;
}

// Where the steps of an axis reach: the smallest and the largest offset.
bool reach(const Axis& axis, std::uint64_t& low, std::uint64_t& high) {
  low = high = 0;
  if (axis.offsets.empty()) return multiply(axis.count - 1, axis.stride, high);
  // Offsets that no step uses do not count.
  const std::size_t used = (axis.count - 1) / axis.per_offset + 1;
  const auto [least, most] = std::minmax_element(axis.offsets.begin(), axis.offsets.begin() + used);
  low = *least;
  std::uint64_t inside = 0;
  return multiply(std::min(axis.per_offset, axis.count) - 1, axis.stride, inside) &&
         add(*most, inside, high);
}

std::uint64_t step_offset(const Axis& axis, std::uint64_t step) {
  if (axis.offsets.empty()) return step * axis.stride;
  if (axis.per_offset == 1) return axis.offsets[step];
  return axis.offsets[step / axis.per_offset] + step % axis.per_offset * axis.stride;
}

// How many steps of the innermost axis, from `step` on, lie one after the other.
std::uint64_t adjacent_steps(const Axis& axis, std::uint64_t step, std::uint64_t run_bytes) {
  if (axis.stride != run_bytes) return 1;
  if (axis.offsets.empty()) return axis.count - step;
  return std::min(axis.per_offset - step % axis.per_offset, axis.count - step);
}

Status check(const Axis& axis, std::size_t number) {
  if (axis.count == 0) {
    return Error::make(Code::kInvalidArgument, "axis %zu has 0 steps; expected at least 1", number);
  }
  if (axis.offsets.empty()) return {};
  if (axis.per_offset == 0) {
    return Error::make(Code::kInvalidArgument,
                       "axis %zu has 0 steps an offset; expected at least 1", number);
  }
  if ((axis.count - 1) / axis.per_offset >= axis.offsets.size()) {
    return Error::make(Code::kInvalidArgument,
                       "axis %zu has %zu offsets for %llu steps of %llu each", number,
                       axis.offsets.size(), static_cast<unsigned long long>(axis.count),
                       static_cast<unsigned long long>(axis.per_offset));
  }
  return {};
}

}  // namespace

Result<Strided> Strided::make(std::uint64_t base, std::vector<Axis> axes, std::uint64_t run_bytes) {
  if (axes.size() > kMostAxes) {
    return Error::make(Code::kInvalidArgument, "%zu axes; expected at most %zu", axes.size(),
                       kMostAxes);
  }
  if (run_bytes == 0)
    return Error::make(Code::kInvalidArgument, "runs of 0 bytes; expected at least 1");
  Strided stream;
  stream.base_ = stream.lowest_ = base;
  stream.run_bytes_ = stream.bytes_ = run_bytes;
  std::uint64_t last = base;
  bool fits = base <= kMost && run_bytes <= kMost;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    CACHALOT_TRY(check(axes[i], i));
    std::uint64_t low = 0, high = 0;
    fits = fits && multiply(stream.bytes_, axes[i].count, stream.bytes_) &&
           reach(axes[i], low, high) && add(stream.lowest_, low, stream.lowest_) &&
           add(last, high, last);
  }
  fits = fits && add(last, run_bytes, stream.end_);
  if (!fits) {
    return Error::make(Code::kInvalidArgument,
                       "a strided stream exceeds 63 bits, in its size or in an address");
  }
  stream.axes_ = std::move(axes);
  stream.merge();
  return stream;
}

Strided Strided::flat(const void* at, std::uint64_t bytes) {
  Strided stream;
  stream.base_ = stream.lowest_ = reinterpret_cast<std::uintptr_t>(at);
  stream.run_bytes_ = stream.bytes_ = bytes;
  stream.end_ = stream.base_ + bytes;
  return stream;
}

void Strided::merge() {
  // An axis of one step only moves the base.
  for (Axis& axis : axes_) {
    if (axis.count == 1) base_ += step_offset(axis, 0);
  }
  std::erase_if(axes_, [](const Axis& axis) { return axis.count == 1; });
  // The innermost loop joins the run if its steps are neighbours.
  while (!axes_.empty() && axes_.back().offsets.empty() && axes_.back().stride == run_bytes_) {
    run_bytes_ *= axes_.back().count;
    axes_.pop_back();
  }
  // So do the tokens of a page, if all pages are whole.
  if (!axes_.empty()) {
    Axis& inner = axes_.back();
    if (!inner.offsets.empty() && inner.stride == run_bytes_ && inner.per_offset > 1 &&
        inner.count % inner.per_offset == 0) {
      run_bytes_ *= inner.per_offset;
      inner.count /= inner.per_offset;
      inner.stride = 0;
      inner.per_offset = 1;
    }
  }
}

void StridedCursor::place(std::size_t axis) {
  for (; axis < stream_->axes_.size(); ++axis) {
    address_[axis + 1] = address_[axis] + step_offset(stream_->axes_[axis], index_[axis]);
  }
}

void StridedCursor::seek(std::uint64_t offset) {
  offset_ = offset;
  address_[0] = stream_->base_;
  if (offset >= stream_->bytes_) return;
  std::uint64_t run = offset / stream_->run_bytes_;
  in_run_ = offset % stream_->run_bytes_;
  for (std::size_t a = stream_->axes_.size(); a-- > 0;) {
    index_[a] = run % stream_->axes_[a].count;
    run /= stream_->axes_[a].count;
  }
  place(0);
}

void StridedCursor::step() {
  std::size_t a = stream_->axes_.size();
  while (a-- > 0) {
    if (++index_[a] < stream_->axes_[a].count) break;
    index_[a] = 0;
    if (a == 0) return;  // the end of the stream: offset_ says so
  }
  if (a < stream_->axes_.size()) place(a);
}

Piece StridedCursor::next(std::uint64_t most) {
  const Strided& stream = *stream_;
  if (offset_ >= stream.bytes_ || most == 0) return {};
  const std::size_t axes = stream.axes_.size();
  const std::uint64_t at = address_[axes] + in_run_;
  std::uint64_t bytes = stream.run_bytes_ - in_run_;
  std::uint64_t steps = 1;
  if (axes > 0 && bytes < most) {
    // Runs of one page that lie one after the other are one piece.
    const std::uint64_t adjacent =
        adjacent_steps(stream.axes_[axes - 1], index_[axes - 1], stream.run_bytes_);
    steps = std::min(adjacent, 1 + (most - bytes + stream.run_bytes_ - 1) / stream.run_bytes_);
    bytes += (steps - 1) * stream.run_bytes_;
  }
  if (bytes > most) {
    in_run_ = stream.run_bytes_ - (bytes - most);
    bytes = most;
    if (steps > 1) {
      index_[axes - 1] += steps - 1;
      place(axes - 1);
    }
    offset_ += bytes;
    return {at, bytes};
  }
  offset_ += bytes;
  in_run_ = 0;
  if (steps > 1) index_[axes - 1] += steps - 1;
  step();
  return {at, bytes};
}

void copy_between(const Strided& from, const Strided& to, std::uint64_t offset,
                  std::uint64_t bytes) {
  copy_pieces(StridedCursor(from, offset), StridedCursor(to, offset), bytes);
}

}  // namespace cachalot::transfer
