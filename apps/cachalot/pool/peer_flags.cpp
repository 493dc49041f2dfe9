#include "peer_flags.h"

#include <string_view>

#include "values.h"

namespace cachalot::apps {
namespace {

bool is_of_this_machine(std::string_view address) {
  return address == "auto" || address.starts_with("unix:") || address.starts_with("tcp:127.") ||
         address.starts_with("tcp:[::1]:") || address.starts_with("tcp:localhost:");
}

// Peers are told the address as it stands here.
bool is_of_every_machine(std::string_view address) {
  return address.find(":0.0.0.0:") != std::string_view::npos ||
         address.find(":[::]:") != std::string_view::npos;
}

}  // namespace

Result<node::PeersOptions> PeerFlags::options() const {
  node::PeersOptions options;
  options.registry = registry;
  options.listen = listen;
  if (!bandwidth.empty()) {
    CACHALOT_TRY_ASSIGN(options.server.most_bytes_per_s,
                        parse_bytes("--peer-bandwidth", bandwidth));
  }
  if (!key_file.empty()) {
    CACHALOT_TRY_ASSIGN(options.key, os::SecretKey::read("cluster key file", key_file));
  }
  for (const std::string& address : listen) {
    if (!address.starts_with("tcp:") && !address.starts_with("ucx:") &&
        !address.starts_with("unix:")) {
      return Error::make(Code::kInvalidArgument,
                         "--peer-listen: %.80s, expected tcp:IP:PORT, ucx:IP:PORT or unix:@NAME",
                         address.c_str());
    }
    if (is_of_every_machine(address)) {
      return Error::make(
          Code::kInvalidArgument,
          "--peer-listen: %.80s, expected the address at which other hosts reach this "
          "one, such as tcp:10.0.0.1:0",
          address.c_str());
    }
    if (options.key || allows_strangers || is_of_this_machine(address)) continue;
    return Error::make(
        Code::kInvalidArgument,
        "--peer-listen: %.80s is open to other machines: needs --cluster-key-file, or "
        "--peers-without-key where the network lets nothing else in",
        address.c_str());
  }
  options.is_encrypted = !is_plain;
  if (!is_given()) return options;
  CACHALOT_TRY(transfer::open_registry(registry));
  if (!listen.empty()) return options;
  return Error::make(
      Code::kInvalidArgument,
      "--peers: needs --peer-listen, the address at which other hosts reach this one: "
      "tcp:10.0.0.1:0");
}

void add_peer_flags(Command& command, PeerFlags& flags) {
  constexpr const char* kGroup = "Peers";
  Flag* const peers =
      command
          .add_option(
              "--peers", flags.registry,
              "read blocks that the pools of other hosts have, and let them read this one's; "
              "where they find each other: file:DIR (one machine), "
              "etcd://HOST:PORT[/PREFIX], etcds://… (TLS)")
          ->type_name("REGISTRY")
          ->group(kGroup);
  command
      .add_option("--peer-listen", flags.listen,
                  "where other hosts reach this one: tcp:10.0.0.1:0 (0: the system chooses the "
                  "port), ucx:10.0.0.1:0; several are paths of one connection")
      ->type_name("ADDRESS")
      ->expected(1)
      ->take_all()
      ->group(kGroup)
      ->needs(peers);
  command
      .add_option("--peer-bandwidth", flags.bandwidth,
                  "bytes a second that this host sends to others at most (default: no limit)")
      ->type_name("SIZE")
      ->group(kGroup)
      ->needs(peers);
  command
      .add_flag("--keep-peer-copies", flags.keeps_copies,
                "evict blocks that came from peers as any other (default: before those of this "
                "host, until a second prompt uses them)")
      ->group(kGroup)
      ->needs(peers);
  command
      .add_option(
          "--cluster-key-file", flags.key_file,
          "peers have to have the same key, which also encrypts tcp: addresses; the file has 32 "
          "bytes, or 64 hexadecimal digits")
      ->type_name("FILE")
      ->group(kGroup)
      ->needs(peers);
  command
      .add_flag("--peers-without-encryption", flags.is_plain,
                "do not encrypt what travels (all hosts say the same)")
      ->group(kGroup)
      ->needs(peers);
  command
      .add_flag("--peers-without-key", flags.allows_strangers,
                "let every process that reaches --peer-listen read the pool")
      ->group(kGroup)
      ->needs(peers);
}

}  // namespace cachalot::apps
