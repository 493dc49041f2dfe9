// Certificates for tests of TLS, made by the program openssl.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace cachalot::storage {

// An authority in a folder, and what it signs: NAME.crt and NAME.key.
class Certificates {
 public:
  // @param name  of the authority's files
  explicit Certificates(std::string folder, std::string name = "ca")
      : folder_(std::move(folder)), name_(std::move(name)) {
    run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj "
        "/CN=" +
        name_ + " -keyout " + key(name_) + " -out " + cert(name_));
  }
  std::string ca() const { return cert(name_); }
  std::string cert(const std::string& name) const { return folder_ + "/" + name + ".crt"; }
  std::string key(const std::string& name) const { return folder_ + "/" + name + ".key"; }
  // @param hosts  "IP:127.0.0.1,DNS:localhost"
  void sign(const std::string& name, const std::string& hosts) const {
    const std::string request = folder_ + "/" + name + ".csr",
                      extension = folder_ + "/" + name + ".ext";
    run("openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=" + name +
        " -keyout " + key(name) + " -out " + request + " && echo subjectAltName=" + hosts + " > " +
        extension + " && openssl x509 -req -days 2 -in " + request + " -CA " + ca() + " -CAkey " +
        key(name_) + " -CAcreateserial -extfile " + extension + " -out " + cert(name));
  }

 private:
  static void run(const std::string& command) {
    EXPECT_EQ(std::system(("{ " + command + "; } > /dev/null 2>&1").c_str()), 0) << command;
  }

  std::string folder_, name_;
};

}  // namespace cachalot::storage
