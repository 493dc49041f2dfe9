// Client: attaching, caches, and synchronous calls.
#include <cachalot/client.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cinttypes>
#include <string>
#include <vector>

#include "client_object.h"
#include "collected.h"
#include "extra_keys.h"
#include "gil_release.h"
#include "hash.h"
#include "head_tokens.h"
#include "keywords.h"
#include "leave.h"
#include "module.h"
#include "numbers.h"
#include "paged_cache.h"

namespace cachalot::python {
namespace {

std::vector<std::string> paths_of(const nb::object& given) {
  const bool is_one = PyUnicode_Check(given.ptr()) || PyBytes_Check(given.ptr()) ||
                      nb::hasattr(given, "__fspath__") || PySequence_Check(given.ptr()) == 0;
  if (is_one) return {path(given, "pool")};
  std::vector<std::string> paths;
  for (const nb::handle one : given) paths.push_back(path(one, "pool"));
  return paths;
}

HashAlgorithm parse_hash(const std::string& name) {
  if (name == "xxh3") return HashAlgorithm::kXxh3;
  if (name == "sha256_cbor") return HashAlgorithm::kSha256Cbor;
  if (name == "xxhash_cbor") return HashAlgorithm::kXxhashCbor;
  refuse("hash: '%.40s' is not xxh3, sha256_cbor or xxhash_cbor", name.c_str());
}

RecordedCall parse_call(const std::string& name) {
  if (name == "lookup") return RecordedCall::kLookup;
  if (name == "load") return RecordedCall::kLoad;
  refuse("recorded_call: '%.40s' is not lookup or load", name.c_str());
}

constexpr const char* kAttachSignature =
    "def __init__(self, *, pool: cachalot.types.Paths, model: str, geometry: "
    "KvGeometry, salt: str = '', "
    "block_order: str = 'layer_first', hash: str = 'xxh3', python_hash_seed: str = "
    "'', host: int = 0, "
    "slot: int | None = None, copy_threads: int = 1, workers: int = 1, "
    "grant_blocks: int = 64, "
    "checksums: bool | None = None, keeper_timeout_s: float = 5.0, recovery_s: "
    "float = 2.0, record_requests: str | os.PathLike[str] | None = None, "
    "recorded_call: str = 'lookup', pool_bypasses_caches: bool = False, "
    "pinned_reads: bool = False, allow_foreign_pool: bool = False, share_tp: int = 0, "
    "counts_prompts: bool = False, copy_cpus: str = '') -> None";
constexpr const char* kRegisterSignature =
    "def register_cache(self, layout: str | None, tensors: cachalot.types.Memory | "
    "collections.abc.Iterable[cachalot.types.Memory], "
    "pages: int, page_tokens: int = 0, page_stride_bytes: int = 0, *, "
    "strides: tuple[PartStrides, PartStrides] | list[PartStrides] | None = None, "
    "device: int | None = None, stream: cachalot.types.Stream = None) -> Cache";

void attach(ClientObject* self, const nb::object& pool, nb::handle model, nb::handle geometry,
            const std::string& salt, const std::string& block_order, const std::string& hash,
            const std::string& python_hash_seed, nb::handle host, nb::handle slot,
            nb::handle copy_threads, nb::handle workers, nb::handle grant_blocks,
            std::optional<bool> checksums, nb::handle keeper_timeout_s, nb::handle recovery_s,
            nb::handle record_requests, const std::string& recorded_call, bool pool_bypasses_caches,
            bool pinned_reads, bool allow_foreign_pool, nb::handle share_tp, bool counts_prompts,
            const std::string& copy_cpus, const nb::kwargs& unknown) {
  refuse_unknown(unknown, "Client", kAttachSignature);
  ClientOptions options;
  options.pool = paths_of(pool);
  options.model = text(model, "model");
  options.salt = salt;
  if (!nb::isinstance<KvGeometry>(geometry)) refuse_type(geometry, "geometry: ", "a KvGeometry");
  options.geometry = instance_of<KvGeometry>(geometry, "geometry");
  options.block_order = block_order;
  options.share_tp = number(share_tp, "share_tp");
  options.hash = parse_hash(hash);
  options.python_hash_seed = python_hash_seed;
  options.host = number(host, "host");
  options.slot = optional_number(slot, "slot");
  options.copy_threads = count(copy_threads, "copy_threads", kMostThreads);
  options.workers = count(workers, "workers", kMostThreads);
  options.grant_blocks = count(grant_blocks, "grant_blocks", kMostGrantBlocks);
  options.checksums = checksums;
  options.keeper_timeout_ns = nanoseconds(seconds(keeper_timeout_s, "keeper_timeout_s"));
  options.recovery_ns = nanoseconds(seconds(recovery_s, "recovery_s"));
  if (!record_requests.is_none())
    options.record_requests = path(record_requests, "record_requests");
  options.recorded_call = parse_call(recorded_call);
  options.pool_bypasses_caches = pool_bypasses_caches;
  options.pinned_reads = pinned_reads;
  options.allow_foreign_pool = allow_foreign_pool;
  options.counts_prompts = counts_prompts;
  options.copy_cpus = copy_cpus;
  Result<Client> client = [&] {
    const GilRelease release;
    return Client::attach(options);
  }();
  new (self) ClientObject(value_of(std::move(client)));
}

CacheObject register_cache(nb::handle self, nb::handle layout, const nb::object& tensors,
                           nb::handle pages, nb::handle page_tokens, nb::handle page_stride_bytes,
                           nb::handle strides, nb::handle device, nb::handle stream,
                           const nb::kwargs& unknown) {
  refuse_unknown(unknown, "register_cache", kRegisterSignature);
  ClientObject& client = client_of(self);
  std::vector<Memory> held;
  const PagedCache cache = paged_cache_of(
      {layout, tensors, pages, page_tokens, page_stride_bytes, strides, device, stream},
      client.client().geometry(), held);
  const CacheId id = client.register_cache(cache, std::move(held));
  return {nb::borrow(self), &client, id};
}

std::size_t lookup(ClientObject& self, nb::handle hashes) {
  const Hashes names(hashes);
  return value_of(self.call([&](Client& client) { return client.lookup(names.get()); }));
}

// Of states, only some blocks of a chain have one.
std::size_t lookup_last(ClientObject& self, nb::handle hashes) {
  const Hashes names(hashes);
  return value_of(self.call([&](Client& client) -> Result<std::size_t> {
    for (std::size_t last = names.get().size(); last > 0; --last) {
      CACHALOT_TRY_ASSIGN(const std::size_t found, client.lookup(names.get().subspan(last - 1, 1)));
      if (found == 1) return last;
    }
    return std::size_t{0};
  }));
}

nb::tuple prefetch(ClientObject& self, nb::handle hashes, nb::handle wait) {
  const Hashes names(hashes);
  const std::uint64_t wait_ns = nanoseconds(seconds(wait, "wait"));
  const Prefetched found =
      value_of(self.call([&](Client& client) { return client.prefetch(names.get(), wait_ns); }));
  return nb::make_tuple(found.in_pool, found.in_storage);
}

nb::tuple begin_prefetch(ClientObject& self, nb::handle hashes) {
  const Hashes names(hashes);
  const Prefetched found =
      value_of(self.call([&](Client& client) { return client.prefetch(names.get(), 0); }));
  return nb::make_tuple(found.in_pool, found.in_storage, found.is_asking);
}

nb::tuple tuple_of(const Context& context) {
  return nb::make_tuple(context.handle, context.blocks, context.expires_unix_s);
}

nb::tuple create_context(ClientObject& self, nb::handle hashes, std::uint64_t seconds) {
  const Hashes names(hashes);
  if (names.get().empty()) refuse("hashes: are empty, expected a prefix");
  return tuple_of(value_of(self.call(
      [&](Client& client) { return client.create_context(names.get().back(), seconds); })));
}

nb::tuple renew_context(ClientObject& self, std::uint64_t handle, std::uint64_t seconds) {
  return tuple_of(
      value_of(self.call([&](Client& client) { return client.renew_context(handle, seconds); })));
}

std::size_t retain(ClientObject& self, const std::string& session, nb::handle hashes,
                   std::uint64_t seconds) {
  const Hashes names(hashes);
  if (names.get().empty()) refuse("hashes: are empty, expected a prefix");
  return value_of(self.call(
      [&](Client& client) { return client.retain(session, names.get().back(), seconds); }));
}

void drop_context(ClientObject& self, std::uint64_t handle) {
  check(self.call([&](Client& client) { return client.drop_context(handle); }));
}

std::size_t load(ClientObject& self, const CacheObject& cache, nb::handle hashes, nb::handle pages,
                 nb::handle first_layer, nb::handle layers, nb::handle timeout, nb::handle stream) {
  const CacheId id = id_of(self, cache);
  const Hashes names(hashes);
  const std::vector<PageId> to = Numbers::copy(pages, "pages");
  const CopyOptions options = copy_options(first_layer, layers, timeout, stream);
  return value_of(
      self.call([&](Client& client) { return client.load(id, names.get(), to, options); }));
}

std::vector<TokenRange> ranges_of(nb::handle object, std::size_t block) {
  std::vector<TokenRange> ranges;
  if (object.is_none()) return ranges;
  for (const nb::handle pair : object) {
    const std::vector<std::uint32_t> ends = Numbers::copy(pair, "tokens");
    if (ends.size() != 2) {
      refuse(
          "tokens: a range of block %zu has %zu numbers, expected 2: the first, and the one after "
          "the last",
          block, ends.size());
    }
    ranges.push_back({ends[0], ends[1]});
  }
  return ranges;
}

std::size_t load_tokens(ClientObject& self, const CacheObject& cache, nb::handle hashes,
                        nb::handle pages, nb::handle tokens, nb::handle first_layer,
                        nb::handle layers, nb::handle timeout, nb::handle stream) {
  const CacheId id = id_of(self, cache);
  const Hashes names(hashes);
  const std::vector<PageId> to = Numbers::copy(pages, "pages");
  std::vector<std::vector<TokenRange>> ranges;
  if (tokens.is_none()) refuse_type(tokens, "tokens: ", "the ranges of each block");
  for (const nb::handle block : tokens) ranges.push_back(ranges_of(block, ranges.size()));
  if (ranges.size() != names.get().size()) {
    refuse("tokens: of %zu blocks, expected those of %zu", ranges.size(), names.get().size());
  }
  const std::vector<std::span<const TokenRange>> spans(ranges.begin(), ranges.end());
  const CopyOptions options = copy_options(first_layer, layers, timeout, stream);
  return value_of(self.call(
      [&](Client& client) { return client.load_tokens(id, names.get(), to, spans, options); }));
}

std::size_t load_head_tokens(ClientObject& self, const CacheObject& cache, nb::handle hashes,
                             nb::handle pages, nb::handle tokens, bool packed,
                             nb::handle first_layer, nb::handle layers, nb::handle timeout,
                             nb::handle stream) {
  const CacheId id = id_of(self, cache);
  const Hashes names(hashes);
  const std::vector<PageId> to = Numbers::copy(pages, "pages");
  const HeadTokens chosen(tokens, self.client().geometry());
  const TokenPlace place = packed ? TokenPlace::kPacked : TokenPlace::kOwn;
  const CopyOptions options = copy_options(first_layer, layers, timeout, stream);
  return value_of(self.call([&](Client& client) {
    return client.load_head_tokens(id, names.get(), to, chosen.lists(), place, options);
  }));
}

Stored store(ClientObject& self, const CacheObject& cache, nb::handle hashes, nb::handle pages,
             nb::handle parent, nb::handle tokens, nb::handle timeout, nb::handle stream) {
  const CacheId id = id_of(self, cache);
  const Hashes names(hashes);
  const std::vector<PageId> from = Numbers::copy(pages, "pages");
  const std::optional<BlockHash> before = parent_of(parent);
  const std::vector<std::uint32_t> kept = stored_tokens(tokens);
  CopyOptions options = copy_options(timeout, stream);
  options.tokens = kept;
  return value_of(self.call([&](Client& client) {
    return client.store(id, before ? &*before : nullptr, names.get(), from, options);
  }));
}

BlockHashes hash_tokens(ClientObject& self, nb::handle tokens, nb::handle extra_keys) {
  const Numbers numbers(tokens, "tokens");
  const std::vector<ExtraKeys> keys =
      extra_keys_of(extra_keys, numbers.get().size() / self.client().geometry().block_tokens);
  const GilRelease release;
  auto hashes = std::make_shared<const std::vector<BlockHash>>(
      self.client().hash_tokens(numbers.get(), keys));
  const std::size_t count = hashes->size();
  return {std::move(hashes), 0, count};
}

int clear_client(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<ClientObject>(self)->collect();
  return 0;
}

PyType_Slot kClientSlots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse<ClientObject>)},
                              {Py_tp_clear, reinterpret_cast<void*>(clear_client)},
                              {0, nullptr}};

}  // namespace

void add_client(nb::module_& module) {
  nb::class_<ClientObject> client(
      module, "Client", nb::type_slots(kClientSlots),
      "Copies KV blocks between an engine's paged cache and a pool that several engines\n"
      "share.\n"
      "\n"
      "    with Client(pool='/dev/shm/kv', model='Qwen3-32B@9216db57',\n"
      "                geometry=geometry) as client:\n"
      "        cache = client.register_cache('vllm_kbnhc', tensors, pages=4096)\n"
      "        hashes = client.hash_tokens(prompt)\n"
      "        hit = client.load(cache, hashes, pages)      # pool -> pages\n"
      "        # compute the blocks from pages[hit] on\n"
      "        client.store(cache, hashes, pages)           # pages -> pool\n"
      "\n"
      "A block is the KV of block_tokens tokens in all layers of this rank. Its name is a\n"
      "chained hash, so a hit is always a prefix.\n"
      "\n"
      "All threads may call simultaneously. Calls that copy or wait do not hold the GIL.\n"
      "In a forked child, calls raise UnsupportedError. After detach(), calls that need\n"
      "the pool raise InvalidArgumentError.");
  add_results(module);
  client
      .def("__init__", &attach, nb::kw_only(), nb::arg("pool") = nb::none(),
           nb::arg("model") = nb::none(), nb::arg("geometry") = nb::none(), nb::arg("salt") = "",
           nb::arg("block_order") = "layer_first", nb::arg("hash") = "xxh3",
           nb::arg("python_hash_seed") = "", nb::arg("host") = 0, nb::arg("slot") = nb::none(),
           nb::arg("copy_threads") = 1, nb::arg("workers") = 1, nb::arg("grant_blocks") = 64,
           nb::arg("checksums") = nb::none(), nb::arg("keeper_timeout_s").none() = 5.0,
           nb::arg("recovery_s").none() = 2.0, nb::arg("record_requests") = nb::none(),
           nb::arg("recorded_call") = "lookup", nb::arg("pool_bypasses_caches") = false,
           nb::arg("pinned_reads") = false, nb::arg("allow_foreign_pool") = false,
           nb::arg("share_tp") = 0, nb::arg("counts_prompts") = false, nb::arg("copy_cpus") = "",
           nb::arg("unknown"), nb::sig(kAttachSignature),
           "Attaches to a pool that a keeper serves. model, salt, geometry, block_order and\n"
           "hash form the namespace: the client never receives blocks of another namespace.\n"
           "\n"
           "pool: the pool's path, or the paths of all its devices in order\n"
           "model: the weights and their revision\n"
           "geometry: of this rank\n"
           "salt: adapters, quantisation, engine version, a tenant's secret\n"
           "block_order: order of dimensions of a block in the pool, see docs/extend/layout.md\n"
           "hash: 'xxh3', or vLLM's 'sha256_cbor' and 'xxhash_cbor'\n"
           "python_hash_seed: PYTHONHASHSEED of the vLLM engines; '' if it is not set, which\n"
           "    xxhash_cbor does not allow\n"
           "host: this machine's number in the pool\n"
           "slot: client slot in the pool; None: a free slot of the host\n"
           "copy_threads: threads that share the copies of one call, 1 to 256\n"
           "workers: threads that run asynchronous calls, 1 to 256\n"
           "grant_blocks: free blocks that this client holds in advance, 1 to 256\n"
           "checksums: of blocks; None: in noncoherent pools only\n"
           "keeper_timeout_s: seconds that a call waits for an answer of the keeper\n"
           "recovery_s: seconds that a store waits for the next keeper, after the death of\n"
           "    one; the timeout of a call limits both waits\n"
           "record_requests: a file for a trace of the requests: hashes, lengths and times\n"
           "recorded_call: the call that is recorded as a request, 'lookup' or 'load'\n"
           "pool_bypasses_caches: for GPU copies of a noncoherent pool. True: the pool's\n"
           "    memory is mapped uncached, and GPU writes do not enter the host's caches (DDIO\n"
           "    is off). False: the host flushes its caches around GPU copies\n"
           "pinned_reads: required for begin_load(pinned=True)\n"
           "allow_foreign_pool: also attach to a pool whose files belong to neither this user\n"
           "    nor root, or that every user may write to\n"
           "share_tp: not 0: engines of different tensor parallelism share their blocks, in\n"
           "    pieces of so many groups of the model's KV heads; see docs/guide/embed.md\n"
           "counts_prompts: True: only count_prompt() counts prompts; False: lookup(),\n"
           "    prefetch() and loads do, see Statistics\n"
           "copy_cpus: on which CPUs copies from and to each device of the pool run, of caches\n"
           "    in this process's memory: '' (anywhere), 'auto', or '0=0-31;1=32-63'; see\n"
           "    docs/guide/pool.md\n"
           "\n"
           "Raises NoKeeperError; BusyError: all slots are in use, or held for clients that\n"
           "stopped answering; InvalidArgumentError: a value is out of range, or a block does\n"
           "not fit the pool's blocks; NotFoundError, PermissionError, NotAPoolError,\n"
           "BadInputError: the pool cannot be opened.")
      .def("detach", &ClientObject::detach,
           "Ends open layer loads and stores, waits for all calls in flight, including\n"
           "asynchronous calls, then detaches. Releases the slot and all registered memory.\n"
           "Cancel asynchronous calls first to avoid the wait. Calling it again does nothing.\n"
           "\n"
           "Raises NoKeeperError, TimeoutError: the keeper did not answer; the slot is free\n"
           "anyway. BusyError: GPU copies of layer stores did not end within keeper_timeout_s;\n"
           "call detach() again. IoError: a GPU failed in a copy, which may write to the\n"
           "tensors until the process ends. They are kept alive until then, except those given\n"
           "as an address: keep them.")
      .def("close", &ClientObject::detach, "The same as detach().")
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> Client"))
      .def(
          "__exit__",
          [](ClientObject& self, nb::args exception) {
            // A forked child also runs the end of its parent's `with`
            if (self.is_forked()) return;
            leave(exception, [&] { self.detach(); });
          },
          nb::sig("def __exit__(self, *exception: object) -> None"))
      .def_prop_ro(
          "geometry", [](const ClientObject& self) { return self.client().geometry(); },
          "Of this rank.")
      .def_prop_ro(
          "block_bytes", [](const ClientObject& self) { return self.client().block_bytes(); },
          "Bytes of one block.")
      .def_prop_ro(
          "statistics", [](const ClientObject& self) { return self.client().statistics(); },
          "Counts since the client attached; also after detach().")
      .def(
          "count_prompt",
          [](ClientObject& self, nb::handle asked, nb::handle from_pool, nb::handle from_peers,
             nb::handle from_storage) {
            const PromptBlocks prompt = {number(asked, "asked"), number(from_pool, "from_pool"),
                                         number(from_peers, "from_peers"),
                                         number(from_storage, "from_storage")};
            check(self.call([&](Client& c) { return c.count_prompt(prompt); }));
          },
          nb::arg("asked").none(), nb::kw_only(), nb::arg("from_pool") = 0,
          nb::arg("from_peers") = 0, nb::arg("from_storage") = 0,
          nb::sig("def count_prompt(self, asked: int, *, from_pool: int = 0, from_peers: int = 0, "
                  "from_storage: int = 0) -> None"),
          "Counts a prompt, of a client with counts_prompts.\n"
          "\n"
          "asked: whole blocks that the engine did not have itself\n"
          "from_pool: blocks of them that it used, and that the pool had when the prompt came\n"
          "from_peers: that it used from another instance, by a transfer\n"
          "from_storage: that it used, and that storage brought into the pool for this prompt\n"
          "\n"
          "Raises InvalidArgumentError: counts_prompts is not set, or more blocks were used\n"
          "than asked for.")
      .def(
          "namespaces", [](const ClientObject& self) { return self.client().namespaces(); },
          nb::sig("def namespaces(self) -> list[str]"),
          "Returns the names of the pool's namespaces, in the order in which they were opened:\n"
          "each one's model and geometry. For messages to people. A name longer than 416 bytes\n"
          "is cut off. In a forked child: none.")
      .def("hash_tokens", &hash_tokens, nb::arg("tokens").none(),
           nb::arg("extra_keys") = nb::none(),
           nb::sig("def hash_tokens(self, tokens: cachalot.types.Tokens, "
                   "extra_keys: cachalot.types.ExtraKeys = None) -> BlockHashes"),
           "Returns the hashes of all whole blocks of a prompt. tokens: starts with the\n"
           "prompt's first token. extra_keys: of the first blocks, as vLLM has them.")
      .def("register_cache", &register_cache, nb::arg("layout") = nb::none(),
           nb::arg("tensors") = nb::none(), nb::arg("pages") = nb::none(),
           nb::arg("page_tokens") = 0, nb::arg("page_stride_bytes") = 0, nb::kw_only(),
           nb::arg("strides") = nb::none(), nb::arg("device") = nb::none(),
           nb::arg("stream") = nb::none(), nb::arg("unknown"), nb::sig(kRegisterSignature),
           "Registers the memory that an engine's pages are in: writable, with numbers of the\n"
           "dtype (unsigned integers of its size stand for its bytes), and C-contiguous unless\n"
           "`strides` say where they lie. It is kept alive until unregister_cache() or detach().\n"
           "\n"
           "layout: one of layout_names(), whose help explains the names; None with strides\n"
           "tensors: one array, or several in the layout's order; they must not overlap. Their\n"
           "    axes are those of the layout, in its order; neighbours may be one: [slots, ...]\n"
           "    for [pages, tokens, ...]. Not checked: arrays of one dimension, (address, bytes)\n"
           "    pairs, tensors with strides or with gaps between pages; axes of equal sizes\n"
           "    cannot be told apart\n"
           "pages: number of pages; page ids are 0 to pages - 1\n"
           "page_tokens: tokens of a page, a divisor of block_tokens; 0: a page is a block\n"
           "page_stride_bytes: from one page to the next; 0: as dense as the layout allows\n"
           "strides: where keys and values (or a latent and its rope part) lie, if no layout\n"
           "    fits\n"
           "device: CUDA's number of the GPU that has the tensors, which are then arrays by\n"
           "    DLPack or __cuda_array_interface__ (torch, CuPy), or pairs (address, bytes);\n"
           "    None: they are in this process's memory\n"
           "stream: GPU cache: the stream of its copies, unless a call names another; None:\n"
           "    the legacy default stream\n"
           "\n"
           "The first cache on a GPU page-locks the whole pool. Raises InvalidArgumentError:\n"
           "an unknown layout; a layout that does not fit the geometry or the tensors; axes or\n"
           "numbers that are not those of the layout or the dtype; strides that leave a tensor;\n"
           "tensors that overlap or are not on the GPU. On a GPU also\n"
           "UnsupportedError: no driver, no GPU, or no kernels for it; NoSpaceError,\n"
           "PermissionError: the pool cannot be page-locked.")
      .def(
          "unregister_cache",
          [](ClientObject& self, const CacheObject& cache) {
            self.unregister_cache(id_of(self, cache));
          },
          nb::arg("cache"),
          "Waits for the calls that use the cache, then unregisters it.\n"
          "\n"
          "Raises BusyError: a LayerLoad or LayerStore of the cache is open. IoError: its GPU\n"
          "failed in a copy, which may write to the tensors until the process ends. The cache\n"
          "is unregistered, and the tensors are kept alive until then, except those given as\n"
          "an address: keep them.")
      .def("lookup", &lookup, nb::arg("hashes").none(),
           nb::sig("def lookup(self, hashes: cachalot.types.Hashes) -> int"),
           "Returns how many leading blocks are in the pool.")
      .def("lookup_last", &lookup_last, nb::arg("hashes").none(),
           nb::sig("def lookup_last(self, hashes: cachalot.types.Hashes) -> int"),
           "Returns how many blocks there are up to the last one that is in the pool, whether "
           "those\n"
           "before it are there or not; 0: none is. Each block that is asked for counts as a "
           "lookup.")
      .def(
          "prefetch", &prefetch, nb::arg("hashes").none(), nb::arg("wait") = 0.0,
          nb::sig("def prefetch(self, hashes: cachalot.types.Hashes, wait: float = 0.0) -> "
                  "tuple[int, int]"),
          "Brings blocks that are not in the pool, but in the storage behind it, into the pool.\n"
          "Returns how many leading blocks are in the pool now, and how many after them are in\n"
          "storage. Without storage the second is 0.\n"
          "\n"
          "wait: seconds; 0 returns at once, and the blocks come later. Else it returns when they\n"
          "    have come, when no more will come, or after this time. If the keeper hangs or is "
          "gone,\n"
          "    up to 0.2 s more are spent before NoKeeperError or TimeoutError")
      .def("create_context", &create_context, nb::arg("hashes").none(), nb::arg("seconds"),
           nb::sig("def create_context(self, hashes: cachalot.types.Hashes, seconds: int) -> "
                   "tuple[int, int, int]"),
           "Keeps a prefix in the pool until the time ends: it is not evicted for room and does "
           "not\n"
           "expire. Returns the handle, the number of blocks kept, and when it ends, in Unix "
           "seconds.\n"
           "\n"
           "hashes: of the prefix; the last one counts. NotFoundError: it is not in the pool")
      .def("renew_context", &renew_context, nb::arg("handle"), nb::arg("seconds"),
           nb::sig("def renew_context(self, handle: int, seconds: int) -> tuple[int, int, int]"),
           "The time counts from now. NotFoundError: this namespace has none with the handle, or "
           "its "
           "time\n"
           "has ended.")
      .def("drop_context", &drop_context, nb::arg("handle"),
           nb::sig("def drop_context(self, handle: int) -> None"),
           "Its blocks may be evicted again, unless another context keeps them.")
      .def("retain", &retain, nb::arg("session"), nb::arg("hashes").none(), nb::arg("seconds"),
           nb::sig("def retain(self, session: str, hashes: cachalot.types.Hashes, seconds: int) -> "
                   "int"),
           "Says that a session, as that of an agent, will use this prefix again: its blocks are\n"
           "evicted last, until the time ends or the session retains another prefix. A bias, no\n"
           "promise. Returns the number of blocks; 0 seconds ends it.\n"
           "\n"
           "hashes: of the prefix; the last one counts. NotFoundError: it is not in the pool")
      .def("begin_prefetch", &begin_prefetch, nb::arg("hashes").none(),
           nb::sig("def begin_prefetch(self, hashes: cachalot.types.Hashes) -> "
                   "tuple[int, int, bool]"),
           "Begins a prefetch() and returns at once. The third value: storage that other hosts\n"
           "write, too, has not answered yet whether it has more. Call it again to know.")
      .def(
          "has_storage",
          [](ClientObject& self) {
            return value_of(self.call([](Client& c) { return c.has_storage(); }));
          },
          nb::sig("def has_storage(self) -> bool"),
          "Whether storage is behind the pool, and in use now.")
      .def("load", &load, nb::arg("cache"), nb::arg("hashes").none(), nb::arg("pages").none(),
           nb::kw_only(), nb::arg("first_layer") = 0, nb::arg("layers") = nb::none(),
           nb::arg("timeout") = nb::none(), nb::arg("stream") = nb::none(),
           nb::sig("def load(self, cache: Cache, hashes: cachalot.types.Hashes, pages: "
                   "cachalot.types.Pages, *, "
                   "first_layer: int = 0, layers: int | None = None, timeout: float | None = None, "
                   "stream: cachalot.types.Stream = None) -> int"),
           "Copies the longest prefix that is in the pool into the engine's pages. Returns how\n"
           "many leading blocks are loaded. Later pages may have been overwritten: compute\n"
           "their blocks.\n"
           "\n"
           "pages: page ids, all different. If a page is a block, block i goes to pages[i]; if\n"
           "    a block has n pages, to pages[i * n] to pages[i * n + n - 1]\n"
           "first_layer, layers: load only these layers, counted within this rank; layers\n"
           "    None: all from first_layer on. Fewer than all: no checksum is verified, because\n"
           "    checksums are of whole blocks\n"
           "timeout: seconds for the whole call; None: no limit\n"
           "stream: GPU cache: the copies run after all work that is on this stream at the\n"
           "    call; None: the cache's stream\n"
           "\n"
           "Raises TimeoutError: `detail` is how many leading blocks were read and validated\n"
           "in time; they need not be computed. InvalidArgumentError: a page or layer out of\n"
           "range, a page twice, sizes that do not match. On a GPU also InvalidArgumentError:\n"
           "the stream is being captured; NoSpaceError: no memory on the GPU; InternalError:\n"
           "the driver refused, no copy is in flight; IoError: the GPU failed, a copy may be\n"
           "in flight until the process ends.")
      .def("load_tokens", &load_tokens, nb::arg("cache"), nb::arg("hashes").none(),
           nb::arg("pages").none(), nb::arg("tokens").none(), nb::kw_only(),
           nb::arg("first_layer") = 0, nb::arg("layers") = nb::none(),
           nb::arg("timeout") = nb::none(), nb::arg("stream") = nb::none(),
           nb::sig("def load_tokens(self, cache: Cache, hashes: cachalot.types.Hashes, pages: "
                   "cachalot.types.Pages, "
                   "tokens: collections.abc.Iterable[cachalot.types.TokenRanges], *, first_layer: "
                   "int = 0, "
                   "layers: int | None = None, timeout: float | None = None, "
                   "stream: cachalot.types.Stream = None) -> int"),
           "As load(), but loads only some tokens of each block, for sparse attention. The\n"
           "copies are not verified by checksums, which cover whole blocks.\n"
           "\n"
           "tokens: of each block, its ranges (first, last) without `last`, ascending and\n"
           "    disjoint; None: the whole block")
      .def("load_head_tokens", &load_head_tokens, nb::arg("cache"), nb::arg("hashes").none(),
           nb::arg("pages").none(), nb::arg("tokens").none(), nb::kw_only(),
           nb::arg("packed") = false, nb::arg("first_layer") = 0, nb::arg("layers") = nb::none(),
           nb::arg("timeout") = nb::none(), nb::arg("stream") = nb::none(),
           nb::sig("def load_head_tokens(self, cache: Cache, hashes: cachalot.types.Hashes, pages: "
                   "cachalot.types.Pages, "
                   "tokens: cachalot.types.HeadTokens, *, packed: bool = False, first_layer: "
                   "int = 0, "
                   "layers: int | None = None, timeout: float | None = None, "
                   "stream: cachalot.types.Stream = None) -> int"),
           "Loads the tokens that each KV head of each layer has chosen for itself, for sparse\n"
           "attention. Bytes of no other token are read. Returns how many leading blocks are\n"
           "valid: rows of tokens in later blocks are void.\n"
           "\n"
           "tokens: [layers, heads, k], an array of integers in the host's memory, contiguous; or\n"
           "    lists of any lengths, tokens[layer][head]. Tokens are counted from the first one\n"
           "    of hashes[0], and each list ascends, without repeats. Layers: those of this call,\n"
           "    the first one is first_layer. Heads: of this rank; a latent has one\n"
           "packed: False: pages as for load(), each token comes to its own place, and all other\n"
           "    tokens stay as they are. True: pages are as many as the longest list needs,\n"
           "    and token i of a list becomes token i % page_tokens of\n"
           "    pages[i // page_tokens]. With pages of one token in the layout 'vllm_lhbnc' (a\n"
           "    latent: 'vllm_lbnhc') the rows are one array [layer, head, i]\n"
           "first_layer, layers, timeout, stream: as for load()\n"
           "\n"
           "The copies are not verified by checksums, which cover whole blocks. The call counts\n"
           "as a load: an engine that calls it in each decode step counts its prompts itself\n"
           "(counts_prompts). The lists are copied when the call begins; any thread may call.\n"
           "Cost: a lookup of all hashes; on a CPU some 40 ns for each row of 256 bytes that lies\n"
           "alone, neighbours are one copy. Source: Beluga (arXiv 2511.20172), experiment 10.\n"
           "\n"
           "Raises as load(); InvalidArgumentError: not a list for each layer and head, a token\n"
           "outside of the blocks, a list that does not ascend, too few pages for a list.")
      .def("store", &store, nb::arg("cache"), nb::arg("hashes").none(), nb::arg("pages").none(),
           nb::kw_only(), nb::arg("parent") = nb::none(), nb::arg("tokens") = nb::none(),
           nb::arg("timeout") = nb::none(), nb::arg("stream") = nb::none(),
           nb::sig("def store(self, cache: Cache, hashes: cachalot.types.Hashes, pages: "
                   "cachalot.types.Pages, *, "
                   "parent: cachalot.types.Parent = None, "
                   "tokens: cachalot.types.Tokens | None = None, timeout: float | None = None, "
                   "stream: cachalot.types.Stream = None) -> Stored"),
           "Copies a chain of blocks from the engine's pages into the pool and publishes them.\n"
           "Blocks that are in the pool already are not copied. Returns how many leading\n"
           "blocks are in the pool, and why not all.\n"
           "\n"
           "pages: as for load(), but a page may be given twice, because it is only read\n"
           "parent: the block before the first one; None: the chain starts a prompt\n"
           "tokens: of the blocks, block_tokens for each; the pool keeps them for its events, if\n"
           "    they fit into its notes; None: none are kept\n"
           "timeout: seconds for the whole call, including all waits for a keeper; None: only\n"
           "    keeper_timeout_s and recovery_s limit the waits\n"
           "stream: as for load()\n"
           "\n"
           "Raises as load(); NoKeeperError, TimeoutError: the last blocks may or may not be\n"
           "in the pool. TimeoutError: `detail` is how many leading blocks are in the pool.")
      .def("__repr__", [](const ClientObject& self) {
        return "Client(" + self.client().geometry().fingerprint() + ")";
      });
  add_objects(client);
}

}  // namespace cachalot::python
