// SPDX-License-Identifier: Apache-2.0
// Host side of the emulator runner: packs the program into an initramfs, writes the boot tables,
// starts Bochs and turns the frames that the guest's init.c sends back into stdout, stderr and an
// exit status. Called by run.sh; see README.md.
//
//   host unpack VMLINUX OUT        flattens the kernel's ELF image into OUT (+ OUT.addr)
//   host run CACHE [options] -- PROGRAM [ARGS...]
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <elf.h>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <poll.h>
#include <set>
#include <stdexcept>
#include <string>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace fs = std::filesystem;
using byte_string = std::vector<char>;
using steady = std::chrono::steady_clock;

// Guest memory map, shared with rom.S.
constexpr std::uint32_t header_at = 0x6000, params_at = 0x7000, cmdline_at = 0x8000, tables_at = 0x9000;
constexpr std::uint64_t initrd_at = 0x8000000;  // 128 MiB: above the kernel's image and bss
constexpr std::uint32_t magic = 0x3141444b;

constexpr int exit_timeout = 124, exit_emulator = 125;

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

byte_string read_file(const fs::path& p) {
  std::ifstream in(p, std::ios::binary);
  if (!in) fail("cannot read " + p.string());
  return byte_string(std::istreambuf_iterator<char>(in), {});
}
void write_file(const fs::path& p, const byte_string& b) {
  std::ofstream out(p, std::ios::binary);
  out.write(b.data(), static_cast<std::streamsize>(b.size()));
  if (!out.flush()) fail("cannot write " + p.string());
}
template <class T> void poke(byte_string& b, std::size_t at, T v) {
  if (b.size() < at + sizeof v) b.resize(at + sizeof v);
  std::memcpy(b.data() + at, &v, sizeof v);
}

// ---- kernel -----------------------------------------------------------------------------------
void unpack_kernel(const fs::path& elf, const fs::path& out) {
  const byte_string e = read_file(elf);
  Elf64_Ehdr h;
  if (e.size() < sizeof h) fail("kernel image too short");
  std::memcpy(&h, e.data(), sizeof h);
  if (std::memcmp(h.e_ident, ELFMAG, SELFMAG) != 0 || h.e_machine != EM_X86_64) fail("kernel is not x86-64 ELF");
  std::uint64_t base = ~0ull, end = 0, mem_end = 0;
  byte_string flat;
  for (int pass = 0; pass < 2; ++pass)
    for (int i = 0; i < h.e_phnum; ++i) {
      Elf64_Phdr p;
      std::memcpy(&p, e.data() + h.e_phoff + static_cast<std::size_t>(i) * sizeof p, sizeof p);
      if (p.p_type != PT_LOAD) continue;
      if (pass == 0) {
        base = std::min(base, p.p_paddr);
        end = std::max(end, p.p_paddr + p.p_filesz);
        mem_end = std::max(mem_end, p.p_paddr + p.p_memsz);
      } else {
        flat.resize(end - base);
        std::memcpy(flat.data() + (p.p_paddr - base), e.data() + p.p_offset, p.p_filesz);
      }
    }
  if (mem_end > initrd_at) fail("kernel reaches beyond the initramfs address");
  write_file(out, flat);
  std::ofstream(out.string() + ".addr") << base << ' ' << h.e_entry << '\n';
}

// Static programs only: a PT_INTERP would need the host's libraries in the guest.
void require_static(const fs::path& p) {
  const byte_string e = read_file(p);
  Elf64_Ehdr h;
  if (e.size() < sizeof h || std::memcmp(e.data(), ELFMAG, SELFMAG) != 0) return;  // a script, say: exec will tell
  std::memcpy(&h, e.data(), sizeof h);
  for (std::size_t i = 0; h.e_phoff + (i + 1) * sizeof(Elf64_Phdr) <= e.size() && i < h.e_phnum; ++i) {
    Elf64_Phdr ph;
    std::memcpy(&ph, e.data() + h.e_phoff + i * sizeof ph, sizeof ph);
    if (ph.p_type == PT_INTERP) fail(p.string() + " is dynamically linked: link it with -static");
  }
}

// ---- initramfs (cpio "newc") ------------------------------------------------------------------
class cpio_archive {
 public:
  void file(const fs::path& host, std::string guest) {
    struct stat st;
    if (lstat(host.c_str(), &st) != 0) fail("cannot stat " + host.string() + ": " + std::strerror(errno));
    parents(guest);
    entry(guest, S_IFREG | (st.st_mode & 0777), read_file(host));
  }
  void tree(const fs::path& host, const std::string& guest) {
    if (!fs::exists(host)) fail("no such file: " + host.string());
    if (!fs::is_directory(host)) return file(host, guest);
    directory(guest);
    for (const auto& e : fs::directory_iterator(host)) tree(e.path(), guest + "/" + e.path().filename().string());
  }
  void bytes(const std::string& guest, const byte_string& b, unsigned mode = 0644) {
    parents(guest);
    entry(guest, S_IFREG | mode, b);
  }
  void directory(const std::string& guest) {
    if (guest.find_first_not_of('/') == std::string::npos || !seen_.insert(guest).second) return;
    parents(guest);
    entry(guest, S_IFDIR | 0755, {});
  }
  byte_string finish() {
    entry("/TRAILER!!!", 0, {});
    return std::move(out_);
  }

 private:
  void parents(const std::string& guest) {
    const auto slash = guest.rfind('/');
    if (slash != std::string::npos && slash > 0) directory(guest.substr(0, slash));
  }
  void entry(const std::string& guest, unsigned mode, const byte_string& data) {
    const std::string name = guest.substr(guest.find_first_not_of('/'));
    char h[111];
    std::snprintf(h, sizeof h, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X", ++inode_, mode, 0, 0,
                  S_ISDIR(mode) ? 2 : 1, 0, static_cast<unsigned>(data.size()), 0, 0, 0, 0,
                  static_cast<unsigned>(name.size() + 1), 0);
    out_.insert(out_.end(), h, h + 110);
    out_.insert(out_.end(), name.c_str(), name.c_str() + name.size() + 1);
    pad();
    out_.insert(out_.end(), data.begin(), data.end());
    pad();
  }
  void pad() { out_.resize((out_.size() + 3) & ~std::size_t{3}); }
  byte_string out_;
  std::set<std::string> seen_;
  unsigned inode_ = 0;
};

// ---- boot tables: what a boot loader would leave in low memory ----------------------------------
byte_string boot_tables(std::uint64_t entry, std::uint64_t initrd_size, std::uint64_t memory,
                        const std::string& cmdline) {
  byte_string b(0x10000 - header_at);
  const auto at = [](std::uint64_t a) { return static_cast<std::size_t>(a - header_at); };
  poke(b, at(header_at), magic);
  poke(b, at(header_at + 8), entry);
  const std::uint64_t p = params_at;  // struct boot_params, Documentation/arch/x86/boot.rst
  const std::uint64_t ram[][2] = {{0, 0x9fc00}, {0x100000, memory - 0x100000}};
  poke<std::uint8_t>(b, at(p + 0x1e8), 2);
  for (std::uint64_t i = 0; i < 2; ++i) {
    poke(b, at(p + 0x2d0 + 20 * i), ram[i][0]);
    poke(b, at(p + 0x2d8 + 20 * i), ram[i][1]);
    poke<std::uint32_t>(b, at(p + 0x2e0 + 20 * i), 1);
  }
  poke<std::uint16_t>(b, at(p + 0x1fe), 0xaa55);
  poke<std::uint32_t>(b, at(p + 0x202), 0x53726448);  // "HdrS"
  poke<std::uint16_t>(b, at(p + 0x206), 0x020f);
  poke<std::uint8_t>(b, at(p + 0x210), 0xff);
  poke<std::uint8_t>(b, at(p + 0x211), 1);
  poke<std::uint32_t>(b, at(p + 0x218), static_cast<std::uint32_t>(initrd_at));
  poke<std::uint32_t>(b, at(p + 0x21c), static_cast<std::uint32_t>(initrd_size));
  poke<std::uint32_t>(b, at(p + 0x228), cmdline_at);
  poke<std::uint32_t>(b, at(p + 0x230), 0x200000);
  if (cmdline.size() > 2047) fail("kernel command line too long");
  std::memcpy(b.data() + at(cmdline_at), cmdline.c_str(), cmdline.size() + 1);
  // identity map of the first GiB: PML4, PDPT, PD with 2 MiB pages
  poke<std::uint64_t>(b, at(tables_at), (tables_at + 0x1000) | 3);
  poke<std::uint64_t>(b, at(tables_at + 0x1000), (tables_at + 0x2000) | 3);
  for (std::uint64_t i = 0; i < 512; ++i) poke<std::uint64_t>(b, at(tables_at + 0x2000 + 8 * i), i << 21 | 0x83);
  return b;
}

// ---- running ------------------------------------------------------------------------------------
struct options {
  fs::path cache;
  double timeout = 300, boot_timeout = 120;
  unsigned memory = 512;
  std::string cpu = "sapphire_rapids", ips = "100000000", sched = "fifo", cwd = "/tmp", append;
  std::vector<std::string> files, env, argv, bochs;
  bool keep = false, verbose = false;
};

pid_t child = -1;
fs::path scratch;
bool keep_scratch = false;
void clean_up() {
  if (child > 0) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    child = -1;
  }
  std::error_code ignored;
  if (!scratch.empty() && !keep_scratch) fs::remove_all(scratch, ignored);
}
volatile std::sig_atomic_t signalled = 0;
void on_signal(int s) { signalled = s; }

void tail(const fs::path& p, std::size_t lines) {
  std::ifstream in(p, std::ios::binary);
  std::vector<std::string> all;
  for (std::string l; std::getline(in, l);) all.push_back(l);
  std::fprintf(stderr, "--- last lines of %s\n", p.filename().c_str());
  for (std::size_t i = all.size() > lines ? all.size() - lines : 0; i < all.size(); ++i)
    std::fprintf(stderr, "%s\n", all[i].c_str());
}

void write_all(int fd, const char* p, std::size_t n) {
  while (n > 0) {
    const ssize_t k = write(fd, p, n);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) return;  // reader gone: keep going for the exit status
    p += k;
    n -= static_cast<std::size_t>(k);
  }
}

int run(const options& o) {
  const char* tmp = std::getenv("TMPDIR");
  std::string dir = std::string(tmp && *tmp ? tmp : "/tmp") + "/kda-bochs.XXXXXX";
  if (!mkdtemp(dir.data())) fail("cannot create a directory " + dir);
  scratch = dir;
  keep_scratch = o.keep;
  for (int s : {SIGINT, SIGTERM, SIGHUP}) std::signal(s, on_signal);
  std::signal(SIGPIPE, SIG_IGN);

  // initramfs
  require_static(o.argv[0]);
  const std::string program = "/test/" + fs::path(o.argv[0]).filename().string();
  cpio_archive c;
  c.directory("/dev");
  c.directory("/proc");
  c.directory("/sys");
  c.directory("/tmp");
  c.file(o.cache / "init", "/init");
  c.file(fs::canonical(o.argv[0]), program);
  for (const std::string& f : o.files) {
    const auto colon = f.find(':');
    const fs::path host = f.substr(0, colon);
    std::string guest =
        colon == std::string::npos ? fs::absolute(host).lexically_normal().string() : f.substr(colon + 1);
    while (guest.size() > 1 && guest.back() == '/') guest.pop_back();
    if (guest.empty() || guest[0] != '/') fail("--file: guest path must be absolute: " + f);
    c.tree(fs::canonical(host), guest);
  }
  if (o.cwd != "/tmp") c.directory(o.cwd);
  std::vector<std::string> env = {"PATH=/test", "HOME=/tmp", "TMPDIR=/tmp", "KDA_EMULATED=bochs"};
  env.insert(env.end(), o.env.begin(), o.env.end());
  byte_string job;
  const auto add = [&](const std::string& s) { job.insert(job.end(), s.c_str(), s.c_str() + s.size() + 1); };
  add(o.sched);
  add(o.cwd);
  add(std::to_string(env.size()));
  for (const auto& e : env) add(e);
  add(program);
  for (std::size_t i = 1; i < o.argv.size(); ++i) add(o.argv[i]);
  if (job.size() >= 1u << 20) fail("arguments too long");
  c.bytes("/kda-job", job);
  const byte_string initrd = c.finish();
  const std::uint64_t memory = std::uint64_t{o.memory} << 20;
  if (initrd_at + 2 * initrd.size() + (64u << 20) > memory)
    fail("program and files need more guest memory: use --mem " +
         std::to_string(((initrd_at + 2 * initrd.size()) >> 20) + 128));
  write_file(scratch / "initrd", initrd);

  std::uint64_t base = 0, entry = 0;
  std::ifstream(o.cache / "kernel.addr") >> base >> entry;
  if (!entry) fail("no kernel in the cache: run setup.sh");
  write_file(
      scratch / "tables",
      boot_tables(
          entry, initrd.size(), memory,
          "console=ttyS0,115200 loglevel=4 nokaslr nopti mitigations=off nosmp nr_cpus=1 acpi=off pci=off noapic "
          "nolapic tsc=reliable no_timer_check lpj=4000000 random.trust_cpu=on cryptomgr.notests nowatchdog "
          "panic=-1 oops=panic reboot=k rcutree.kthread_prio=3 rcupdate.rcu_cpu_stall_suppress=1 "
          "clearcpuid=amx_tile,amx_bf16,amx_int8,fsrm nopku init_on_alloc=0 audit=0 lsm= quiet tsc_early_khz=" +
              std::to_string(std::stoul(o.ips) / 1000) + " " + o.append));

  int pipe_fd[2];
  if (pipe(pipe_fd) != 0) fail("pipe");
  fcntl(pipe_fd[0], F_SETFD, FD_CLOEXEC);
  {
    std::ofstream rc(scratch / "bochsrc");
    const std::string s = scratch.string(), k = o.cache.string();
    rc << "memory: guest=" << o.memory << ", host=" << o.memory << "\n"
       << "cpu: model=" << o.cpu << ", count=1, ips=" << o.ips << ", reset_on_triple_fault=1, ignore_bad_msrs=1\n"
       << "romimage: file=" << k << "/rom.bin\nvgaromimage: file=" << k << "/vgarom.bin\n"
       << "optramimage1: file=" << k << "/kernel, address=0x" << std::hex << base << "\n"
       << "optramimage2: file=" << s << "/initrd, address=0x" << initrd_at << "\n"
       << "optramimage3: file=" << s << "/tables, address=0x" << header_at << std::dec << "\n"
       << "config_interface: textconfig\ndisplay_library: nogui\nclock: sync=none, time0=utc\npci: enabled=0\n"
       << "vga: extension=none\nata0: enabled=0\nata1: enabled=0\nfloppy_bootsig_check: disabled=1\n"
       << "com1: enabled=1, mode=file, dev=" << s << "/console.log\n"
       << "parport1: enabled=1, file=/dev/fd/" << pipe_fd[1] << "\n"
       << "log: " << s
       << "/bochs.log\npanic: action=fatal\nerror: action=ignore\ninfo: action=" << (o.verbose ? "report" : "ignore")
       << "\ndebug: action=ignore\n";
    for (const auto& l : o.bochs) rc << l << "\n";
    if (!rc.flush()) fail("cannot write bochsrc");
  }

  const auto start = steady::now();
  child = fork();
  if (child < 0) fail("fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int null = open("/dev/null", O_RDWR),
              log = open((scratch / "bochs.out").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    dup2(null, 0);
    dup2(log, 1);
    dup2(log, 2);
    const std::string exe = (o.cache / "bochs").string(), rc = (scratch / "bochsrc").string();
    execl(exe.c_str(), "bochs", "-q", "-f", rc.c_str(), static_cast<char*>(nullptr));
    std::perror(exe.c_str());
    _exit(127);
  }
  close(pipe_fd[1]);

  byte_string in;
  bool booted = false, timed_out = false;
  int status = -1;
  std::string reason;
  auto deadline = start + std::chrono::duration<double>(o.boot_timeout);
  while (status < 0) {
    if (signalled) {
      clean_up();
      std::signal(signalled, SIG_DFL);
      std::raise(signalled);
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - steady::now()).count();
    if (left <= 0) {
      timed_out = true;
      break;
    }
    pollfd p{pipe_fd[0], POLLIN, 0};
    const int k = poll(&p, 1, static_cast<int>(std::min<long long>(left + 1, 60000)));
    if (k < 0 && errno != EINTR) fail("poll");
    if (k <= 0) continue;
    char buf[65536];
    const ssize_t n = read(pipe_fd[0], buf, sizeof buf);
    if (n <= 0) break;  // Bochs ended
    in.insert(in.end(), buf, buf + n);
    std::size_t at = 0;
    while (in.size() - at >= 3) {
      const auto byte = [&](std::size_t i) -> std::size_t { return static_cast<unsigned char>(in[i]); };
      const std::size_t len = byte(at + 1) | byte(at + 2) << 8;
      if (in.size() - at < 3 + len) break;
      const char type = in[at], *data = in.data() + at + 3;
      if (type == 'O' || type == 'E')
        write_all(type == 'O' ? 1 : 2, data, len);
      else if (type == 'B') {
        booted = true;
        deadline = steady::now() + std::chrono::duration<double>(o.timeout);
        if (o.verbose)
          std::fprintf(stderr, "kda-bochs: booted in %.2f s, %.*s\n",
                       std::chrono::duration<double>(steady::now() - start).count(), static_cast<int>(len), data);
      } else if (type == 'X')
        status = static_cast<unsigned char>(data[0]) | static_cast<unsigned char>(data[1]) << 8;
      else {
        reason.assign(data, len);
        break;
      }
      at += 3 + len;
    }
    in.erase(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(at));
    if (!reason.empty()) break;
  }

  int bochs_status = 0;
  bool ended = false;
  for (int i = 0; i < 500 && !timed_out && !ended; ++i) {  // an orderly end of Bochs; else SIGKILL below
    ended = waitpid(child, &bochs_status, WNOHANG) == child;
    if (!ended) usleep(2000);
  }
  if (ended) child = -1;
  const double seconds = std::chrono::duration<double>(steady::now() - start).count();
  int result;
  if (status >= 0) {
    result = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (WIFSIGNALED(status))
      std::fprintf(stderr, "kda-bochs: program ended by signal %d (%s)\n", WTERMSIG(status),
                   strsignal(WTERMSIG(status)));
    if (o.verbose) std::fprintf(stderr, "kda-bochs: %.2f s in all\n", seconds);
  } else if (booted && timed_out) {
    std::fprintf(stderr, "kda-bochs: timeout: the program ran for more than %g s\n", o.timeout);
    result = exit_timeout;
  } else {
    std::fprintf(stderr, "kda-bochs: EMULATOR FAILURE (no test result): %s\n",
                 !reason.empty() ? reason.c_str()
                 : timed_out     ? "no boot in time"
                 : booted        ? "the guest died while the program ran"
                                 : "the guest did not boot");
    tail(scratch / "bochs.out", 15);
    tail(scratch / "bochs.log", 15);
    tail(scratch / "console.log", 30);
    result = exit_emulator;
  }
  if (o.keep) std::fprintf(stderr, "kda-bochs: kept %s\n", scratch.c_str());
  clean_up();
  return result;
}

int main(int argc, char** argv) try {
  for (int fd = open("/dev/null", O_RDWR); fd >= 0 && fd < 3;) fd = dup(fd);  // started with 0, 1 or 2 closed
  const std::vector<std::string> a(argv + 1, argv + argc);
  if (a.size() == 3 && a[0] == "unpack") {
    unpack_kernel(a[1], a[2]);
    return 0;
  }
  if (a.size() < 2 || a[0] != "run") fail("usage: host run CACHE [options] -- PROGRAM [ARGS...]");
  options o;
  o.cache = a[1];
  std::size_t i = 2;
  for (; i < a.size() && a[i].rfind("--", 0) == 0; ++i) {
    if (a[i] == "--") {
      ++i;
      break;
    }
    if (a[i] == "--keep") {
      o.keep = true;
      continue;
    }
    if (a[i] == "--verbose") {
      o.verbose = true;
      continue;
    }
    const auto value = [&](const std::string& name) {
      if (i + 1 >= a.size()) fail(name + " needs a value");
      return a[++i];
    };
    const std::string n = a[i];
    if (n == "--timeout")
      o.timeout = std::stod(value(n));
    else if (n == "--boot-timeout")
      o.boot_timeout = std::stod(value(n));
    else if (n == "--mem")
      o.memory = static_cast<unsigned>(std::stoul(value(n)));
    else if (n == "--cpu")
      o.cpu = value(n);
    else if (n == "--ips")
      o.ips = value(n);
    else if (n == "--sched")
      o.sched = value(n);
    else if (n == "--cwd")
      o.cwd = value(n);
    else if (n == "--file")
      o.files.push_back(value(n));
    else if (n == "--env")
      o.env.push_back(value(n));
    else if (n == "--append")
      o.append = value(n);
    else if (n == "--bochs")
      o.bochs.push_back(value(n));
    else
      fail("unknown option " + n);
  }
  o.argv.assign(a.begin() + static_cast<std::ptrdiff_t>(i), a.end());
  if (o.argv.empty()) fail("no program given");
  if (o.sched != "fifo" && o.sched != "other") fail("--sched: fifo or other");
  return run(o);
} catch (const std::exception& e) {
  std::fprintf(stderr, "kda-bochs: %s\n", e.what());
  clean_up();
  return exit_emulator;
}
