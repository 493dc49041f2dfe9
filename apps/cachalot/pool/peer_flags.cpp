#include "peer_flags.h"

#include "values.h"

namespace cachalot::apps {

Result<node::PeersOptions> PeerFlags::options() const {
  node::PeersOptions options;
  options.registry = registry;
  options.listen = listen;
  if (!bandwidth.empty()) {
    CACHALOT_TRY_ASSIGN(options.server.most_bytes_per_s,
                        parse_bytes("--peer-bandwidth", bandwidth));
  }
  if (!is_given() || !listen.empty()) return options;
  return Error::make(
      Code::kInvalidArgument,
      "--peers: needs --peer-listen, the address at which other hosts reach this one: "
      "tcp:10.0.0.1:0");
}

void add_peer_flags(CLI::App& command, PeerFlags& flags) {
  constexpr const char* kGroup = "Peers";
  CLI::Option* const peers =
      command
          .add_option(
              "--peers", flags.registry,
              "read blocks that the pools of other hosts have, and let them read this one's; "
              "where they find each other: file:DIR (one machine), "
              "etcd://HOST:PORT[/PREFIX]")
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
}

}  // namespace cachalot::apps
