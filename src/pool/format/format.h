// What lies in a pool, byte for byte (drawn in docs/formats/pool.md).
//
// Little-endian. Everything shared is made of sealed 64-byte lines (memory/line.h); the sections'
// places follow from the geometry in the header by Layout alone, so that no stored offset can lie.
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>

#include "memory/coherence.h"
#include "memory/interleave.h"
#include "memory/line.h"

namespace cachalot::pool {

inline constexpr std::uint64_t kMagic = 0x31544f4c41484341u;  // "ACHALOT1"
inline constexpr std::uint32_t kFormatVersion = 2;
inline constexpr std::uint32_t kGrowableVersion = 3;  // of a pool that may grow; else as version 2

inline constexpr std::uint32_t kNoBlock = 0xffffffffu;
inline constexpr std::uint32_t kLastGeneration = 0xffffffffu;  // a block of it is not used again
inline constexpr std::uint64_t kPageBytes = 4096;
inline constexpr std::uint32_t kKeeperSlots = 4;
inline constexpr std::uint32_t kRingLines = 256;      // lines of one ring, a power of two
inline constexpr std::uint32_t kMaxNamespaces = 256;  // fingerprints a pool can tell apart
inline constexpr std::uint32_t kNameLines = 8;        // of a namespace
inline constexpr std::uint32_t kNameLineBytes =
    52;  // as much as a following line of a request carries
inline constexpr std::uint32_t kMaxContexts = 1024;
inline constexpr std::uint32_t kMaxExpansions = 31;
inline constexpr std::uint32_t kPathLines = 7;  // of an expansion, as name lines
inline constexpr std::uint32_t kMaxPathBytes = kPathLines * kNameLineBytes;
inline constexpr std::uint32_t kMaxNameBytes = kNameLines * kNameLineBytes;
inline constexpr std::uint32_t kBucketSlots = 64;  // directory slots an entry may stand in
inline constexpr std::uint32_t kLedgerRecordsPerLine = 5;
inline constexpr std::uint32_t kMaxClients = 1024;
inline constexpr std::uint32_t kMaxDevices = 64;
inline constexpr std::uint32_t kMaxNoteBytes = 1u << 20;
inline constexpr std::uint32_t kDefaultNoteBytes = 1088;  // room for 256 tokens

// What a pool is made of; fixed at creation.
struct Geometry {
  memory::DomainKind domain = memory::DomainKind::kCoherent;
  std::uint32_t devices = 1;
  std::uint64_t device_bytes = 0;     // of each device, a multiple of 2 MiB
  std::uint64_t block_bytes = 0;      // payload of one block, a multiple of 64
  std::uint32_t blocks = 0;           // blocks there is room for
  std::uint32_t capacity_blocks = 0;  // blocks that may be published at once, <= blocks
  std::uint32_t directory_slots = 0;  // a multiple of kBucketSlots, about 2 a published block
  std::uint32_t clients = 0;          // client slots
  std::uint32_t hosts = 1;            // client slots are divided evenly among host numbers
  std::uint32_t note_bytes = 0;       // of a block's note (notes.h), a multiple of 64; 0: no notes
  // The one device may be smaller than all blocks need: those that it has no room for wait for a device that is
  // added later (pool/expansion).
  bool growable = false;
  // Of kMixed, else 0: bit i says that device i is not coherent; bit 1 of a growable pool, all that are added.
  std::uint64_t noncoherent_devices = 0;

  bool is_noncoherent(std::uint32_t device) const {
    return (noncoherent_devices >> device & 1) != 0;
  }
  std::uint32_t spare_blocks() const { return blocks - capacity_blocks; }
  // Of each host's slots the last one is the operators', unless it is the only one: a client that stops a
  // keeper or fences a client gets in where engines have, or hold, all others.
  std::uint32_t clients_per_host() const { return clients / hosts; }
  std::uint32_t first_client(std::uint32_t host) const { return host * clients_per_host(); }
  std::uint32_t operator_clients() const { return clients_per_host() > 1 ? hosts : 0; }
  std::uint32_t engine_clients() const { return clients - operator_clients(); }
};

// --- Lines -------------------------------------------------------------------------------------

// Header, line 0 of every device.
struct HeaderLine {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t domain;
  std::uint64_t uuid_low, uuid_high;
  std::uint32_t device_index;
  std::uint32_t devices;
  std::uint64_t device_bytes;
  std::uint64_t noncoherent_devices;  // of a mixed domain, else 0
  std::uint32_t reserved;
  std::uint32_t crc;
};

// Header, line 1 of every device.
struct GeometryLine {
  std::uint64_t block_bytes;
  std::uint32_t blocks;
  std::uint32_t capacity_blocks;
  std::uint32_t directory_slots;
  std::uint32_t clients;
  std::uint32_t hosts;
  std::uint32_t keeper_slots;
  std::uint32_t ring_lines;
  std::uint32_t namespaces;
  std::uint64_t created_unix_s;
  std::uint32_t growable;  // 1 in version 3, else 0
  std::uint32_t reserved;
  std::uint32_t note_bytes;
  std::uint32_t crc;
};

// One per keeper slot; written by that keeper alone and only when it begins and ends to rule: a
// reader compares all 64 bytes (rule R6). The highest epoch rules.
struct KeeperLine {
  std::uint32_t epoch;
  std::uint32_t min_epoch;  // entries of older epochs are void
  std::uint32_t flags;      // kKeeper*
  std::uint32_t pid;
  std::uint64_t start_time;  // of the process, in clock ticks since boot
  std::uint64_t boot_id_low, boot_id_high;
  std::uint32_t host;           // of its machine
  std::uint32_t pid_namespace;  // 0: it did not say
  std::uint32_t time_namespace;
  std::uint32_t reserved[2];
  std::uint32_t crc;
};
// answers requests; else: taking over, or gone
inline constexpr std::uint32_t kKeeperServing = 1;
inline constexpr std::uint32_t kKeeperSplitLines = 2;  // its line writes may tear (rule R5)
// it stopped in order, and all payloads were written back to the devices' files before
inline constexpr std::uint32_t kKeeperFlushed = 4;

// Eight-byte counters, seven a line, for any process that maps the pool (pool/format/statistics.h).
struct CounterLine {
  std::uint64_t values[7];
  std::uint32_t sequence;
  std::uint32_t crc;
};

// How a keeper serves, for `cachalot pool info`; written when it begins to.
struct KeeperInfoLine {
  std::uint32_t epoch;
  std::uint32_t pins;        // blocks that stay
  std::uint32_t priorities;  // namespaces that have one of their own
  std::uint32_t reserved;
  std::uint64_t ttl_ns;        // 0: blocks do not expire
  std::uint64_t since_unix_s;  // when it began to serve
  char policy[16];             // padded with zeros, as is the next
  char version[12];            // of the keeper's program
  std::uint32_t crc;
};

// The identity of a client; written by the client.
struct ClientLine {
  std::uint32_t incarnation;  // counts the attachments of this slot; 0: never used
  std::uint32_t flags;        // kClient*
  std::uint32_t host;
  std::uint32_t pid;
  std::uint64_t start_time;
  std::uint64_t boot_id_low, boot_id_high;
  std::uint32_t epoch;  // the keeper it wants to be served by
  // this process's incarnations up to here store no more: all joined, complete
  std::uint32_t drained;
  std::uint32_t pid_namespace;
  std::uint32_t time_namespace;
  std::uint32_t reserved;
  std::uint32_t crc;
};
inline constexpr std::uint32_t kClientAttached = 1;
inline constexpr std::uint32_t kClientSplitLines = 2;
inline constexpr std::uint32_t kClientPins = 4;  // it may publish a PinLine

// Counts up while the client lives; written by the client.
struct HeartbeatLine {
  std::uint64_t beat;
  std::uint32_t incarnation;
  std::uint32_t echo_incarnation, echo_epoch;  // only where a test breaks rule R1
  std::uint32_t reserved[9];
  std::uint32_t reserved2;
  std::uint32_t crc;
};

// A client's reads in flight that cannot be validated; written by the client. Reads are counted up:
// a block that was retracted while `newest` was n may be used again once `oldest` is 0 or above n.
struct PinLine {
  std::uint64_t oldest;  // that has not ended; 0: none
  std::uint64_t newest;  // that ever began
  std::uint32_t incarnation;
  std::uint32_t reserved[9];
  std::uint32_t reserved2;
  std::uint32_t crc;
};

// Which machine has a host number; written by the agent of that host (pool/hosts/host_agent.h), as the next one is.
struct HostLine {
  std::uint64_t beat;  // counts up while the agent runs
  std::uint64_t boot_id_low, boot_id_high;
  std::uint64_t machine_low,
      machine_high;  // the same after a boot; zeros: the machine has no such name
  std::uint32_t host;
  std::uint32_t agent_pid;
  std::uint32_t ended_epoch;  // keepers of this host with an epoch up to here have exited
  std::uint32_t reserved[2];
  std::uint32_t crc;
};

// Of a client slot: a process that had it, and has exited.
struct DepartureLine {
  std::uint32_t host;
  std::uint32_t pid;
  std::uint32_t pid_namespace;
  std::uint32_t time_namespace;
  std::uint64_t start_time;
  std::uint64_t boot_id_low, boot_id_high;
  std::uint64_t reserved[2];
  std::uint32_t reserved2;
  std::uint32_t crc;
};

// What the keeper knows of a client slot: its last client, and whether that still counts. In the
// keeper's own area, so that a successor knows which clients it waits for.
struct ViewLine {
  std::uint32_t incarnation;  // the last one that was let in
  std::uint32_t epoch;
  std::uint32_t heartbeat;       // the last one seen, its low half: its echo
  std::uint32_t time_namespace;  // of the process below
  std::uint32_t flags;           // kView*
  std::uint32_t host;            // of that incarnation's process, as in its ClientLine
  std::uint32_t pid;
  std::uint32_t pid_namespace;
  std::uint64_t start_time;
  std::uint64_t boot_id_low, boot_id_high;
  std::uint32_t refused;  // an incarnation that was not let in, because the slot is held
  std::uint32_t crc;
};
inline constexpr std::uint32_t kViewOpen = 1;  // its mailbox is read
// not open, and nothing proves that it stores no more
inline constexpr std::uint32_t kViewHeld = 2;
inline constexpr std::uint32_t kViewPins = 4;       // it may have pins
inline constexpr std::uint32_t kViewSuspected = 8;  // not open, because it fell silent

struct NamespaceLine {
  std::uint64_t digest_low, digest_high;  // of the fingerprint
  std::uint32_t id;                       // 1-based; 0: unused
  std::uint32_t epoch;
  std::uint64_t reserved[4];
  std::uint32_t reserved2;
  std::uint32_t crc;
};

// A part of a namespace's name: text for operators and logs, padded with zeros.
struct NameLine {
  char text[kNameLineBytes];
  std::uint32_t epoch;
  std::uint32_t reserved;
  std::uint32_t crc;
};

// A context: a block that stays, with its prefix, until a time.
struct ContextLine {
  std::uint64_t handle;  // 0: none is here
  std::uint64_t hash_low, hash_high;
  std::uint64_t expires_unix_s;
  std::uint32_t namespace_id;
  std::uint32_t epoch;   // of the keeper that wrote it
  std::uint32_t blocks;  // of the prefix
  std::uint32_t reserved[4];
  std::uint32_t crc;
};

// What a growable pool has beyond its first device. The keeper's rows are behind this line.
struct ExpansionsLine {
  std::uint64_t version;  // the keeper's epoch << 32 | changes: never the same for two tables
  std::uint32_t epoch;
  std::uint32_t count;
  std::uint32_t leaving;  // blocks from here on are given up; kNoBlock: none
  std::uint32_t blocks;   // that are handed out, from 0 on
  std::uint32_t lost;  // rows from the last one on, backwards: devices that a keeper began without
  std::uint32_t reserved[8];
  std::uint32_t crc;
};

// One device that was added. Seven NameLines with its path follow.
struct ExpansionLine {
  std::uint64_t serial_low, serial_high;  // as on the device itself
  std::uint64_t bytes;                    // of blocks, behind the device's first 2 MiB
  std::uint32_t epoch;
  std::uint32_t reserved[8];
  std::uint32_t crc;
};

// Line 2 of such a device, behind copies of the pool's header lines.
struct SerialLine {
  std::uint64_t serial_low, serial_high;
  std::uint64_t bytes;  // of blocks
  std::uint64_t reserved[4];
  std::uint32_t reserved2;
  std::uint32_t crc;
};

enum class LedgerState : std::uint8_t {
  kFree = 0,
  kGranted = 1,      // a client may store into it
  kLive = 2,         // published
  kQuarantined = 3,  // its holder is suspected: not reused without evidence
  kBad = 4,          // not used any more
};

struct LedgerRecord {
  std::uint32_t generation;  // of the block's newest use; W4
  std::uint32_t incarnation;
  std::uint16_t holder;  // client slot
  LedgerState state;
  std::uint8_t reserved;
};
static_assert(sizeof(LedgerRecord) == 12);

struct LedgerLine {
  LedgerRecord records[kLedgerRecordsPerLine];
  std::uint32_t crc;
};

// Entry.state
inline constexpr std::uint16_t kEntryFree = 1;  // never used, or a tombstone
inline constexpr std::uint16_t kEntryLive = 2;
// Entry.flags, CommitItem.flags
inline constexpr std::uint16_t kEntryHasChecksum = 1;

// A directory entry: "the payload of `hash` lies in `block`, under this identity".
struct Entry {
  std::uint64_t hash_low, hash_high;
  std::uint32_t block;
  std::uint32_t parent;  // block of the parent, kNoBlock at a root
  std::uint32_t length;  // payload bytes
  std::uint32_t epoch;
  std::uint32_t generation;
  std::uint32_t namespace_id;
  std::uint64_t checksum;  // XXH3-64 of the payload, padded with zeros to whole lines
  std::uint64_t spill;     // bit i: slot i of this bucket holds an entry whose home is here
  std::uint16_t state;
  std::uint16_t flags;  // kEntryHasChecksum
  std::uint32_t crc;
};

static_assert(sizeof(HeaderLine) == 64 && sizeof(GeometryLine) == 64 && sizeof(KeeperLine) == 64);
static_assert(sizeof(CounterLine) == 64 && sizeof(ClientLine) == 64 && sizeof(ViewLine) == 64);
static_assert(sizeof(KeeperInfoLine) == 64);
static_assert(sizeof(ContextLine) == 64);
static_assert(sizeof(ExpansionsLine) == 64 && sizeof(ExpansionLine) == 64);
static_assert(sizeof(SerialLine) == 64);
static_assert(sizeof(HostLine) == 64 && sizeof(DepartureLine) == 64);
static_assert(sizeof(HeartbeatLine) == 64 && sizeof(PinLine) == 64);
static_assert(sizeof(NamespaceLine) == 64 && sizeof(NameLine) == 64);
static_assert(sizeof(LedgerLine) == 64 && sizeof(Entry) == 64);

// --- Places ------------------------------------------------------------------------------------

// Offsets on device 0; data_offset also on the others. Lines of different writers are at least a
// page apart, so that a prefetch that follows one writer never pulls in another's lines.
struct Layout {
  // keeper area k: [ page: KeeperLine, 8 its copy, CounterLines from line 16, 32 KeeperInfoLine ][ namespaces ][ their names ]
  // [ views, a page each client ][ response rings ][ ledger ][ expansions, if it may grow ]
  std::uint64_t keeper_areas;
  std::uint64_t keeper_area_bytes;
  std::uint64_t namespaces_in_area;
  std::uint64_t names_in_area;
  std::uint64_t views_in_area;
  std::uint64_t responses_in_area;
  std::uint64_t ledger_in_area;
  std::uint64_t expansions_in_area;  // of a growable pool, else 0
  // client page: line 0 ClientLine, 1 heartbeat, 2 pinned reads, 8 doorbell, CounterLines from line 16; the
  // slot's totals from line 32, their second copy from line 40; 56 DepartureLine; 57, in the page of a host's first
  // slot, HostLine
  std::uint64_t client_pages;
  std::uint64_t doorbell_page;  // the keeper's
  std::uint64_t request_rings;
  std::uint64_t directory;
  std::uint64_t notes;  // one a block, back to back
  std::uint64_t metadata_bytes;
  std::uint64_t data_offset;            // 2 MiB aligned; device 0
  std::uint64_t other_data_offset;      // devices 1…: after the header copy
  std::uint64_t data_bytes_per_device;  // in a growable pool with all expansions
  std::uint32_t first_blocks;           // that the first devices have room for

  std::uint64_t keeper_line(std::uint32_t keeper) const {
    return keeper_areas + keeper * keeper_area_bytes;
  }
  std::uint64_t keeper_line_copy(std::uint32_t keeper) const {
    return keeper_line(keeper) + 8 * memory::kLineBytes;
  }
  std::uint64_t keeper_counters(std::uint32_t keeper) const {
    return keeper_line(keeper) + 16 * memory::kLineBytes;
  }
  std::uint64_t keeper_info(std::uint32_t keeper) const {
    return keeper_line(keeper) + 32 * memory::kLineBytes;
  }
  std::uint64_t namespace_line(std::uint32_t keeper, std::uint32_t index) const {
    return keeper_line(keeper) + namespaces_in_area + index * memory::kLineBytes;
  }
  std::uint64_t name_line(std::uint32_t keeper, std::uint32_t index, std::uint32_t part) const {
    return keeper_line(keeper) + names_in_area +
           (std::uint64_t{index} * kNameLines + part) * memory::kLineBytes;
  }
  std::uint64_t view_line(std::uint32_t keeper, std::uint32_t client) const {
    return keeper_line(keeper) + views_in_area + client * kPageBytes;
  }
  // Lines behind the views: those of a keeper that are of no client. Line `number` is on the page of client
  // number % clients. 0: a pool of so few clients has no room for it.
  std::uint64_t spare_line(std::uint32_t keeper, std::uint32_t number,
                           std::uint32_t clients) const {
    const std::uint64_t line = 1 + number / clients;
    if (line >= kPageBytes / memory::kLineBytes) return 0;
    return view_line(keeper, number % clients) + line * memory::kLineBytes;
  }
  // CounterLines of the namespaces, one each.
  std::uint64_t namespace_counters(std::uint32_t keeper, std::uint32_t index,
                                   std::uint32_t clients) const {
    return spare_line(keeper, index, clients);
  }
  // ContextLines, behind those.
  std::uint64_t context_line(std::uint32_t keeper, std::uint32_t index,
                             std::uint32_t clients) const {
    return spare_line(keeper, kMaxNamespaces + index, clients);
  }
  std::uint64_t response_ring(std::uint32_t keeper, std::uint32_t client) const {
    return keeper_line(keeper) + responses_in_area +
           std::uint64_t{client} * kRingLines * memory::kLineBytes;
  }
  std::uint64_t ledger_line(std::uint32_t keeper, std::uint32_t block) const {
    return keeper_line(keeper) + ledger_in_area +
           block / kLedgerRecordsPerLine * memory::kLineBytes;
  }
  std::uint64_t expansions_line(std::uint32_t keeper) const {
    return keeper_line(keeper) + expansions_in_area;
  }
  // Of expansion `index`; its path's lines follow.
  std::uint64_t expansion_line(std::uint32_t keeper, std::uint32_t index) const {
    return expansions_line(keeper) + (index + 1) * (1 + kPathLines) * memory::kLineBytes;
  }
  std::uint64_t client_line(std::uint32_t client) const {
    return client_pages + client * kPageBytes;
  }
  std::uint64_t client_heartbeat(std::uint32_t client) const {
    return client_line(client) + memory::kLineBytes;
  }
  std::uint64_t client_pins(std::uint32_t client) const {
    return client_line(client) + 2 * memory::kLineBytes;
  }
  std::uint64_t client_doorbell(std::uint32_t client) const {
    return client_line(client) + 8 * memory::kLineBytes;
  }
  std::uint64_t client_counters(std::uint32_t client) const {
    return client_line(client) + 16 * memory::kLineBytes;
  }
  std::uint64_t client_totals(std::uint32_t client, std::uint32_t copy) const {
    return client_line(client) + (32 + 8 * copy) * memory::kLineBytes;
  }
  std::uint64_t departure(std::uint32_t client) const {
    return client_line(client) + 56 * memory::kLineBytes;
  }
  std::uint64_t host_line(std::uint32_t first_client) const {
    return client_line(first_client) + 57 * memory::kLineBytes;
  }
  std::uint64_t request_ring(std::uint32_t client) const {
    return request_rings + std::uint64_t{client} * kRingLines * memory::kLineBytes;
  }
  std::uint64_t entry(std::uint32_t slot) const {
    return directory + std::uint64_t{slot} * memory::kLineBytes;
  }
};

// Where everything lies. @errors kInvalidArgument: a value out of range, or the devices are too
// small; the message names the value, and how many bytes a device would have to have.
Result<Layout> lay_out(const Geometry& geometry);

// The smallest device_bytes (a multiple of 2 MiB) with room for all of `geometry`, or in a growable pool for the spare
// blocks and one more; device_bytes of the argument is ignored. @errors kInvalidArgument as above
Result<std::uint64_t> device_bytes_needed(const Geometry& geometry);

// Blocks beyond the capacity: what clients hold in advance, and what is on its way back. 64 for each client, but at most
// 32 MiB of them, and an eighth of the capacity for all: clients then hold fewer.
std::uint64_t rated_spare_blocks(std::uint32_t clients, std::uint64_t capacity_blocks,
                                 std::uint64_t block_bytes);

// Slots for a directory of `capacity_blocks` at its rated load of one half.
std::uint32_t rated_directory_slots(std::uint32_t capacity_blocks);

}  // namespace cachalot::pool
