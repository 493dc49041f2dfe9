#include "storage/s3/s3_backend.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstring>
#include <random>
#include <unordered_map>

#include "storage/s3/listing.h"
#include "storage/value.h"

namespace cachalot::storage {
namespace {

using Verb = S3Request::Verb;

constexpr std::size_t kMostHeadObjects = 64;     // more are written together
constexpr std::size_t kHeadsPerObject = 50'000;  // 5.6 MB
constexpr std::size_t kHeadsPerRun = 1000;
constexpr std::size_t kMostPageBytes = 8 << 20;  // of a list: names have 1 KiB at most

constexpr const char* kHeadRange = "Range: bytes=0-111";
static_assert(kHeadBytes == 112);

std::string_view text_at(const void* data, std::size_t bytes) {
  return {static_cast<const char*>(data), bytes};
}

class S3Backend final : public Backend {
 public:
  S3Backend(const S3Options& options, const std::string& prefix)
      : objects_(prefix + "/objects/"),
        heads_(prefix + "/heads/"),
        names_per_page_(options.names_per_page),
        client_(options) {}

  const BackendTraits& traits() const override { return traits_; }
  Status exists(std::span<const ObjectKey> keys, std::span<bool> is_there,
                std::uint64_t deadline_ns) override;
  Status heads(std::span<const ObjectKey> keys, std::span<std::optional<ObjectHead>> heads,
               std::uint64_t deadline_ns) override;
  Status get(std::span<Get> gets, std::uint64_t deadline_ns) override;
  Status put(std::span<Put> puts, std::uint64_t deadline_ns) override;
  Status remove(std::span<const ObjectKey> keys, std::uint64_t deadline_ns) override;
  Status list(const Lister& each, std::uint64_t deadline_ns) override;
  std::shared_ptr<CancelSignal> cancel_signal() const override { return client_.cancel_signal(); }

 private:
  // What list() knows: heads of objects that are there, in the order of their puts.
  struct Known {
    std::vector<ObjectHead> heads;
    std::unordered_map<ObjectKey, bool> has_head;  // the objects that are there
    void add(const ObjectHead& head);
  };
  // The heads of one object, as its bytes come.
  struct HeadStream {
    std::size_t left;  // heads that it may have
    std::string part = {};
    bool feed(Bytes bytes, Known& known);
  };

  std::string name_of(const ObjectKey& key) const { return objects_ + to_text(key); }
  std::string new_heads_name() const;
  void run_puts(std::span<S3Request> requests, std::uint64_t deadline_ns);
  Result<std::vector<std::string>> names_below(const std::string& prefix,
                                               std::uint64_t deadline_ns);
  Status read_heads(std::span<const std::string> names, std::size_t most_each, Known& known,
                    std::uint64_t deadline_ns);
  Status add_missing(Known& known, std::uint64_t deadline_ns);
  void write_together(const Known& known, std::span<const std::string> old,
                      std::uint64_t deadline_ns);

  const BackendTraits traits_{
      .name = "s3", .align_bytes = 1, .is_shared = true, .asks_before_put = true};
  const std::string objects_, heads_;
  const std::uint32_t names_per_page_;
  S3Client client_;
  std::atomic<bool> has_conditions_{true};  // the service knows If-None-Match
};

// --- Objects ---------------------------------------------------------------------------------------

Status S3Backend::exists(std::span<const ObjectKey> keys, std::span<bool> is_there,
                         std::uint64_t deadline_ns) {
  std::vector<S3Request> requests;
  // A byte of each: the answer to a HEAD has no body, which names the error.
  for (const ObjectKey& key : keys)
    requests.push_back({.name = name_of(key), .headers = {"Range: bytes=0-0"}});
  client_.run(requests, deadline_ns);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const Status outcome = client_.outcome(requests[i]);
    is_there[i] = outcome.ok();
    if (!outcome && outcome.error().code != Code::kNotFound) return outcome;
  }
  return {};
}

Status S3Backend::heads(std::span<const ObjectKey> keys, std::span<std::optional<ObjectHead>> heads,
                        std::uint64_t deadline_ns) {
  std::vector<std::string> starts(keys.size());
  std::vector<S3Request> requests;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    requests.push_back({.verb = Verb::kGet, .name = name_of(keys[i])});
    requests.back().headers = {kHeadRange};
    // A service that does not know ranges sends it all.
    requests.back().take = [&start = starts[i]](Bytes bytes) {
      start += text_at(bytes.data(), std::min(bytes.size(), kHeadBytes - start.size()));
      return start.size() < kHeadBytes;
    };
  }
  client_.run(requests, deadline_ns);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    heads[i].reset();
    const Status outcome = client_.outcome(requests[i]);
    if (!outcome && outcome.error().code != Code::kNotFound) return outcome;
    const Result<ObjectHead> head = head_of_value(std::as_bytes(std::span(starts[i])));
    if (outcome && head && check_head(*head, keys[i])) heads[i] = *head;
  }
  return {};
}

Status S3Backend::remove(std::span<const ObjectKey> keys, std::uint64_t deadline_ns) {
  std::vector<S3Request> requests;
  for (const ObjectKey& key : keys)
    requests.push_back({.verb = Verb::kDelete, .name = name_of(key)});
  client_.run(requests, deadline_ns);
  for (const S3Request& request : requests) {
    const Status outcome = client_.outcome(request);
    if (!outcome && outcome.error().code != Code::kNotFound) return outcome;
  }
  return {};
}

Status S3Backend::get(std::span<Get> gets, std::uint64_t deadline_ns) {
  std::vector<S3Request> requests;
  std::vector<ValueSink> sinks;
  sinks.reserve(gets.size());
  for (Get& get : gets) {
    get.status = {};
    sinks.emplace_back(get);
    requests.push_back({.verb = Verb::kGet, .name = name_of(get.key)});
    requests.back().take = [sink = &sinks.back()](Bytes bytes) { return sink->feed(bytes); };
    requests.back().restart = [sink = &sinks.back()] { sink->restart(); };
  }
  client_.run(requests, deadline_ns);
  for (std::size_t i = 0; i < gets.size(); ++i) {
    const Status outcome = client_.outcome(requests[i]);
    if (outcome) {
      sinks[i].finish();
    } else {
      gets[i].status = outcome;
    }
  }
  return {};
}

// Objects that are there are kept: 412. A service that does not know the condition gets the put without it.
void S3Backend::run_puts(std::span<S3Request> requests, std::uint64_t deadline_ns) {
  if (has_conditions_) {
    for (S3Request& request : requests) request.headers = {"If-None-Match: *"};
  }
  client_.run(requests, deadline_ns);
  const bool is_unknown = std::any_of(requests.begin(), requests.end(), [](const S3Request& one) {
    return one.code == 501 && !one.headers.empty();
  });
  if (!is_unknown) return;
  has_conditions_ = false;
  for (S3Request& request : requests) request.headers.clear();
  client_.run(requests, deadline_ns);
}

Status S3Backend::put(std::span<Put> puts, std::uint64_t deadline_ns) {
  std::vector<S3Request> requests;
  for (const Put& put : puts) {
    requests.push_back({.verb = Verb::kPut, .name = name_of(put.head.key)});
    requests.back().start = text_at(&put.head, kHeadBytes);
    requests.back().body = put.body;
  }
  run_puts(requests, deadline_ns);
  std::string heads;
  for (std::size_t i = 0; i < puts.size(); ++i) {
    if (!requests[i].status.ok() || requests[i].code != 412) {
      puts[i].status = client_.outcome(requests[i]);
      if (puts[i].status) heads += text_at(&puts[i].head, kHeadBytes);
    } else {
      puts[i].status = {};
    }
  }
  if (heads.empty()) return {};
  // If it fails, list() reads the heads of these objects.
  S3Request hint{.verb = Verb::kPut, .name = new_heads_name()};
  hint.start = heads;
  client_.run({&hint, 1}, deadline_ns);
  return {};
}

// --- List ------------------------------------------------------------------------------------------

void S3Backend::Known::add(const ObjectHead& head) {
  const auto at = has_head.find(head.key);
  if (at == has_head.end() || at->second || !check_head(head, head.key)) return;
  at->second = true;
  heads.push_back(head);
}

std::string S3Backend::new_heads_name() const {
  static std::atomic<std::uint64_t> salt{std::random_device{}() *
                                         std::uint64_t{0x9e3779b97f4a7c15}};
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  char name[40];
  std::snprintf(
      name, sizeof name, "%016" PRIx64 "-%016" PRIx64,
      static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count()),
      salt.fetch_add(1));
  return heads_ + name;
}

Result<std::vector<std::string>> S3Backend::names_below(const std::string& prefix,
                                                        std::uint64_t deadline_ns) {
  std::vector<std::string> names;
  std::string token;
  do {
    S3Request page;
    page.query = token.empty() ? "" : "continuation-token=" + encode_percent(token, false) + "&";
    page.query += "list-type=2&max-keys=" + std::to_string(names_per_page_) +
                  "&prefix=" + encode_percent(prefix, false);
    std::string xml;
    page.take = [&](Bytes bytes) {
      xml += text_at(bytes.data(), bytes.size());
      return xml.size() <= kMostPageBytes;
    };
    client_.run({&page, 1}, deadline_ns);
    const Status outcome = client_.outcome(page);
    if (!outcome) return outcome.error();
    CACHALOT_TRY_ASSIGN(const S3Listing listing, S3Listing::parse(xml));
    if (listing.names.size() > names_per_page_) {
      return Error::make(Code::kIo, "s3: a list of %zu names, expected at most %u",
                         listing.names.size(), names_per_page_);
    }
    names.insert(names.end(), listing.names.begin(), listing.names.end());
    token = listing.next;
  } while (!token.empty());
  return names;
}

// @return false: it has more than it may have
bool S3Backend::HeadStream::feed(Bytes bytes, Known& known) {
  part += text_at(bytes.data(), bytes.size());
  std::size_t at = 0;
  for (; left != 0 && part.size() - at >= kHeadBytes; at += kHeadBytes, --left) {
    const Result<ObjectHead> head = head_of_value(std::as_bytes(std::span(part)).subspan(at));
    if (head) known.add(*head);
  }
  part.erase(0, at);
  return left != 0 || part.empty();
}

// Adds the heads at the begin of these objects. Those that are gone meanwhile have none.
Status S3Backend::read_heads(std::span<const std::string> names, std::size_t most_each,
                             Known& known, std::uint64_t deadline_ns) {
  for (std::size_t first = 0; first < names.size(); first += kHeadsPerRun) {
    const auto some = names.subspan(first, std::min(kHeadsPerRun, names.size() - first));
    std::vector<HeadStream> streams(some.size(), HeadStream{most_each});
    std::vector<S3Request> requests;
    for (std::size_t i = 0; i < some.size(); ++i) {
      requests.push_back({.verb = Verb::kGet, .name = some[i]});
      if (most_each == 1) requests.back().headers = {kHeadRange};
      requests.back().take = [&, i](Bytes bytes) { return streams[i].feed(bytes, known); };
    }
    client_.run(requests, deadline_ns);
    for (const S3Request& request : requests) {
      const Status outcome = client_.outcome(request);
      if (!outcome && outcome.error().code != Code::kNotFound) return outcome;
    }
  }
  return {};
}

// The heads of objects that are in no batch of heads.
Status S3Backend::add_missing(Known& known, std::uint64_t deadline_ns) {
  std::vector<std::string> names;
  for (const auto& [key, has_head] : known.has_head) {
    if (!has_head) names.push_back(name_of(key));
  }
  return read_heads(names, 1, known, deadline_ns);
}

// New ones before the old ones go: what fails in between only leaves more of them.
void S3Backend::write_together(const Known& known, std::span<const std::string> old,
                               std::uint64_t deadline_ns) {
  std::vector<S3Request> writes;
  for (std::size_t first = 0; first < known.heads.size(); first += kHeadsPerObject) {
    const std::size_t count = std::min(kHeadsPerObject, known.heads.size() - first);
    writes.push_back({.verb = Verb::kPut, .name = new_heads_name()});
    writes.back().start = text_at(&known.heads[first], count * kHeadBytes);
  }
  client_.run(writes, deadline_ns);
  for (const S3Request& write : writes) {
    if (!client_.outcome(write)) return;
  }
  std::vector<S3Request> removals;
  for (const std::string& name : old) removals.push_back({.verb = Verb::kDelete, .name = name});
  client_.run(removals, deadline_ns);
}

Status S3Backend::list(const Lister& each, std::uint64_t deadline_ns) {
  CACHALOT_TRY_ASSIGN(const std::vector<std::string> objects, names_below(objects_, deadline_ns));
  CACHALOT_TRY_ASSIGN(const std::vector<std::string> batches, names_below(heads_, deadline_ns));
  Known known;
  for (const std::string& name : objects) {
    const Result<ObjectKey> key =
        parse_object_key(std::string_view(name).substr(std::min(objects_.size(), name.size())));
    if (key) known.has_head.emplace(*key, false);
  }
  CACHALOT_TRY(read_heads(batches, kHeadsPerObject, known, deadline_ns));
  CACHALOT_TRY(add_missing(known, deadline_ns));
  if (batches.size() > kMostHeadObjects) write_together(known, batches, deadline_ns);
  for (const ObjectHead& head : known.heads) {
    if (!each(head)) break;
  }
  return {};
}

}  // namespace

std::unique_ptr<Backend> make_s3_backend(const S3Options& options, const std::string& prefix) {
  return std::make_unique<S3Backend>(options, prefix.empty() ? "cachalot" : prefix);
}

}  // namespace cachalot::storage
