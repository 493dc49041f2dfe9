#include "storage/file/io_batch.h"

#include <liburing.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace cachalot::storage {
namespace {

// Takes `bytes` that were transferred off the request. @return whether it is finished
bool advance(IoRequest& request, std::uint64_t bytes) {
  request.offset += bytes;
  while (!request.pieces.empty() && bytes >= request.pieces[0].iov_len) {
    bytes -= request.pieces[0].iov_len;
    request.pieces = request.pieces.subspan(1);
  }
  if (request.pieces.empty()) return true;
  iovec& piece = request.pieces[0];
  piece.iov_base = static_cast<char*>(piece.iov_base) + bytes;
  piece.iov_len -= bytes;
  return false;
}

// What one system call, or one completion, says. @return whether the request is finished
bool take_result(IoRequest& request, std::int64_t result) {
  if (result == -EINTR || result == -EAGAIN) return false;
  if (result <= 0) {
    request.os_error = result == 0 ? (request.is_write ? EIO : ENODATA) : static_cast<int>(-result);
    return true;
  }
  return advance(request, static_cast<std::uint64_t>(result));
}

class SystemCalls final : public IoBatch {
 public:
  void run(std::span<IoRequest> requests, const Begins& begins, const Ended& ended) override {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      IoRequest& request = requests[i];
      request.os_error = 0;
      if (!request.pieces.empty()) (void)begins(i);  // true: all others have ended
      while (!request.pieces.empty() && !take_result(request, transfer(request))) {
      }
      ended(i);
    }
  }
  Kind kind() const override { return Kind::kSystemCalls; }

 private:
  static std::int64_t transfer(const IoRequest& request) {
    const auto count = static_cast<int>(request.pieces.size());
    const auto offset = static_cast<off_t>(request.offset);
    const ssize_t done = request.is_write
                             ? pwritev(request.fd, request.pieces.data(), count, offset)
                             : preadv(request.fd, request.pieces.data(), count, offset);
    return done < 0 ? -errno : done;
  }
};

class Uring final : public IoBatch {
 public:
  static std::unique_ptr<Uring> make(std::uint32_t depth) {
    auto batch = std::unique_ptr<Uring>(new Uring(depth));
    // Completions wait for the next call instead of interrupting the thread. Before Linux 5.19: EINVAL.
    if (io_uring_queue_init(depth, &batch->ring_, IORING_SETUP_COOP_TASKRUN) != 0 &&
        io_uring_queue_init(depth, &batch->ring_, 0) != 0) {
      return nullptr;
    }
    batch->is_open_ = true;
    return batch;
  }
  ~Uring() override {
    if (is_open_) io_uring_queue_exit(&ring_);
  }

  void run(std::span<IoRequest> requests, const Begins& begins, const Ended& ended) override {
    if (!is_open_) return fallback_.run(requests, begins, ended);
    waiting_.clear();
    for (IoRequest& request : requests) {
      request.os_error = 0;
      (request.pieces.empty() ? ended_ : waiting_).push_back(&request);
    }
    const auto index = [&](const IoRequest* request) {
      return static_cast<std::size_t>(request - requests.data());
    };
    const auto tell = [&] {
      for (const IoRequest* const request : ended_) ended(index(request));
      ended_.clear();
    };
    const std::size_t first_times = waiting_.size();  // behind these: what is continued
    // A few at a time, so that the device begins while the kernel prepares the others.
    constexpr std::size_t kAtATime = 4;
    std::size_t in_flight = 0, next = 0;
    while (in_flight != 0 || next != waiting_.size()) {
      for (; next != waiting_.size() && in_flight < depth_; ++in_flight) {
        if (next < first_times && !begins(index(waiting_[next]))) break;
        queue(*waiting_[next++]);
        if (io_uring_sq_ready(&ring_) == kAtATime) (void)io_uring_submit(&ring_);
      }
      // The caller's work on those that have ended goes on while the next ones are in flight.
      const int submitted = io_uring_submit_and_wait(&ring_, ended_.empty() ? 1 : 0);
      tell();
      // The kernel has no memory for it now: what is queued stays queued.
      if (submitted < 0 && submitted != -EINTR && submitted != -EAGAIN && submitted != -EBUSY) {
        give_up(in_flight);
        tell();
        const std::size_t begun = next < first_times ? index(waiting_[next]) : requests.size();
        return run_rest(requests, begun, begins, ended);
      }
      in_flight -= take_completions();
    }
    tell();
  }
  Kind kind() const override { return Kind::kUring; }

 private:
  explicit Uring(std::uint32_t depth) : depth_(depth) {}

  void queue(IoRequest& request) {
    io_uring_sqe* const entry =
        io_uring_get_sqe(&ring_);  // never null: at most depth_ are in flight
    const auto count = static_cast<unsigned>(request.pieces.size());
    const iovec& first = request.pieces[0];
    const bool is_one = count == 1 && first.iov_len <= UINT32_MAX / 2;
    if (is_one && request.is_write) {
      io_uring_prep_write(entry, request.fd, first.iov_base, static_cast<unsigned>(first.iov_len),
                          request.offset);
    } else if (is_one) {
      io_uring_prep_read(entry, request.fd, first.iov_base, static_cast<unsigned>(first.iov_len),
                         request.offset);
    } else if (request.is_write) {
      io_uring_prep_writev(entry, request.fd, request.pieces.data(), count, request.offset);
    } else {
      io_uring_prep_readv(entry, request.fd, request.pieces.data(), count, request.offset);
    }
    io_uring_sqe_set_data(entry, &request);
  }

  std::size_t take_completions() {
    io_uring_cqe* completion = nullptr;
    std::size_t taken = 0;
    while (io_uring_peek_cqe(&ring_, &completion) == 0) {
      auto& request = *static_cast<IoRequest*>(io_uring_cqe_get_data(completion));
      (take_result(request, completion->res) ? ended_ : waiting_).push_back(&request);
      io_uring_cqe_seen(&ring_, completion);
      ++taken;
    }
    return taken;
  }

  // The ring itself failed: waits for what the kernel has of it.
  void give_up(std::size_t in_flight) {
    std::size_t in_kernel = in_flight - io_uring_sq_ready(&ring_);
    io_uring_cqe* completion = nullptr;
    while (in_kernel != 0 && io_uring_wait_cqe(&ring_, &completion) != -EBADF) {
      in_kernel -= take_completions();
    }
    io_uring_queue_exit(&ring_);
    is_open_ = false;
  }

  // @param begun  those before it have begun
  void run_rest(std::span<IoRequest> requests, std::size_t begun, const Begins& begins,
                const Ended& ended) {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (requests[i].pieces.empty() || requests[i].os_error != 0) continue;
      fallback_.run(
          requests.subspan(i, 1), [&](std::size_t) { return i < begun || begins(i); },
          [&](std::size_t) { ended(i); });
    }
  }

  const std::uint32_t depth_;
  bool is_open_ = false;
  io_uring ring_{};
  std::vector<IoRequest*> waiting_, ended_;
  SystemCalls fallback_;
};

}  // namespace

std::unique_ptr<IoBatch> IoBatch::make(std::uint32_t depth, Kind kind) {
  if (kind == Kind::kUring) {
    if (std::unique_ptr<IoBatch> batch = Uring::make(depth)) return batch;
  }
  return std::make_unique<SystemCalls>();
}

}  // namespace cachalot::storage
