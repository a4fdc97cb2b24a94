/* SPDX-License-Identifier: Apache-2.0 */
/* PID 1 of the emulated machine: turns AMX on, runs the test program, sends its output and exit
 * status to the host through the parallel port, powers off. Built static by setup.sh.
 *
 * Protocol (bytes written to LPT1, read by host.cpp): frames of [type][len lo][len hi][payload].
 *   B  booted, payload = text about the machine     O/E  stdout/stderr bytes
 *   X  exited, payload = wait status (4 bytes LE)   F    the guest could not start the program: text */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LPT = 0x378, SHUTDOWN = 0x8900, AMX_ON = 0x8901 };
enum { GET_SUPP = 0x1021, GET_PERM = 0x1022, REQ_PERM = 0x1023 }; /* ARCH_*_XCOMP_* */

static void put(const void* data, size_t n) {
  const unsigned char* p = data;
  for (; n; --n) {
    outb(*p++, LPT);
    outb(0x09, LPT + 2); /* selected, strobe */
    outb(0x08, LPT + 2);
  }
}
static void frame(char type, const void* data, size_t n) {
  unsigned char h[3] = {(unsigned char)type, (unsigned char)n, (unsigned char)(n >> 8)};
  put(h, 3);
  put(data, n);
}
static _Noreturn void power_off(void) {
  for (const char* s = "Shutdown"; *s; ++s) outb(*s, SHUTDOWN);
  for (;;) pause();
}
static _Noreturn void fail(const char* what) {
  char b[300];
  int n = snprintf(b, sizeof b, "%s: %s", what, strerror(errno));
  frame('F', b, n < 300 ? n : 299);
  power_off();
}
static uint64_t xcr0(void) {
  uint32_t a, d;
  __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  return a | (uint64_t)d << 32;
}
static void text(const char* path, const char* value) {
  int fd = open(path, O_WRONLY);
  if (fd >= 0) {
    (void)!write(fd, value, strlen(value));
    close(fd);
  }
}
static int has_xsave(void) {
  uint32_t a = 1, b, c, d;
  __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "=c"(c), "=d"(d));
  return c >> 27 & 1;
}

/* Linux would answer "not supported" to the AMX permission calls: grant them here. REQ needs no
 * work (returns 0); the two GETs are answered by PID 1, with XCR0. */
static int permission_filter(void) {
  struct sock_filter f[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 6),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, GET_SUPP, 3, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, GET_PERM, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, REQ_PERM, 0, 2),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog p = {sizeof f / sizeof *f, f};
  return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &p);
}
static void answer_permission(int fd) {
  struct seccomp_notif q;
  struct seccomp_notif_resp r;
  memset(&q, 0, sizeof q);
  memset(&r, 0, sizeof r);
  if (ioctl(fd, SECCOMP_IOCTL_NOTIF_RECV, &q)) return;
  uint64_t mask = xcr0();
  struct iovec from = {&mask, sizeof mask}, to = {(void*)q.data.args[1], sizeof mask};
  r.id = q.id;
  if (process_vm_writev((pid_t)q.pid, &from, 1, &to, 1, 0) != sizeof mask) r.error = -EFAULT;
  ioctl(fd, SECCOMP_IOCTL_NOTIF_SEND, &r);
}

int main(void) {
  if (iopl(3)) _exit(1);
  mkdir("/proc", 0755);
  mkdir("/sys", 0755);
  mkdir("/dev", 0755);
  mkdir("/tmp", 01777);
  mount("proc", "/proc", "proc", 0, 0);
  mount("sysfs", "/sys", "sysfs", 0, 0);
  mount("devtmpfs", "/dev", "devtmpfs", 0, 0);
  mkdir("/dev/shm", 01777);
  mount("tmpfs", "/dev/shm", "tmpfs", 0, 0);
  symlink("/proc/self/fd", "/dev/fd");
  int null = open("/dev/null", O_RDWR);
  for (int i = 0; i < 3; ++i)
    if (null != i) dup2(null, i);

  /* /kda-job: options, then "", cwd, number of env strings, env..., argv... ; all NUL-terminated */
  static char job[1 << 20];
  int fd = open("/kda-job", O_RDONLY);
  ssize_t n = fd < 0 ? -1 : read(fd, job, sizeof job - 1);
  if (n <= 0) fail("/kda-job");
  close(fd);
  unlink("/kda-job");
  char* s = job;
#define NEXT (s += strlen(s) + 1)
  int fifo = !strcmp(s, "fifo");
  NEXT;
  char* cwd = s;
  NEXT;
  int ne = atoi(s);
  NEXT;
  char** env = calloc(ne + 1, sizeof *env);
  for (int i = 0; i < ne; ++i) {
    env[i] = s;
    NEXT;
  }
  char** argv = calloc(n + 1, sizeof *argv);
  for (int i = 0; s < job + n; ++i) {
    argv[i] = s;
    NEXT;
  }

  int amx = 0;
  uint64_t x = 0;
  if (has_xsave()) {
    outb('X', AMX_ON);
    x = xcr0();
    amx = (x >> 17 & 3) == 3;
  }
  char msg[100];
  frame('B', msg, snprintf(msg, sizeof msg, "xcr0=%llx amx=%d", (unsigned long long)x, amx));

  int out[2], err[2], sync[2], ack[2];
  if (pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC) || pipe2(sync, O_CLOEXEC) || pipe2(ack, O_CLOEXEC)) fail("pipe");
  struct sched_param low = {.sched_priority = 1}, high = {.sched_priority = 2};
  if (fifo) {
    /* First-in-first-out scheduling: a thread runs until it blocks or yields. Linux does not save
     * AMX tiles on a switch here, so a switch in the middle of a tile kernel would corrupt it. */
    text("/proc/sys/kernel/sched_rt_runtime_us", "-1");
    sched_setscheduler(0, SCHED_FIFO, &high);
  }
  pid_t pid = fork();
  if (pid < 0) fail("fork");
  if (!pid) {
    if (fifo) sched_setscheduler(0, SCHED_FIFO, &low);
    dup2(out[1], 1);
    dup2(err[1], 2);
    struct rlimit core = {0, 0};
    setrlimit(RLIMIT_CORE, &core);
    int notify = amx ? permission_filter() : -1;
    (void)!write(sync[1], &notify, sizeof notify);
    char go; /* exec closes the listener: wait until PID 1 has its copy */
    close(ack[1]);
    (void)!read(ack[0], &go, 1);
    if (chdir(cwd)) {
      dprintf(2, "kda-bochs: chdir %s: %s\n", cwd, strerror(errno));
      _exit(126);
    }
    execve(argv[0], argv, env);
    dprintf(2, "kda-bochs: exec %s: %s\n", argv[0], strerror(errno));
    _exit(errno == ENOENT ? 127 : 126);
  }
  close(out[1]);
  close(err[1]);
  close(sync[1]);
  close(ack[0]);
  int notify = -1;
  if (read(sync[0], &notify, sizeof notify) != sizeof notify) fail("child");
  if (notify >= 0) {
    int p = (int)syscall(SYS_pidfd_open, pid, 0);
    notify = (int)syscall(SYS_pidfd_getfd, p, notify, 0);
    if (notify < 0) fail("pidfd_getfd");
  } else if (amx)
    fail("seccomp");
  close(ack[1]);

  struct pollfd p[3] = {{out[0], POLLIN, 0}, {err[0], POLLIN, 0}, {notify, POLLIN, 0}};
  static char buf[16384];
  int status = 0, done = 0;
  while (p[0].fd >= 0 || p[1].fd >= 0 || !done) {
    int k = poll(p, 3, done ? 0 : 100);
    for (int i = 0; i < 2; ++i)
      if (p[i].fd >= 0 && p[i].revents) {
        ssize_t m = read(p[i].fd, buf, sizeof buf);
        if (m > 0)
          frame(i ? 'E' : 'O', buf, (size_t)m);
        else
          p[i].fd = -1;
      }
    if (p[2].revents & POLLIN)
      answer_permission(notify);
    else if (p[2].revents)
      p[2].fd = -1;
    if (done && k <= 0) break; /* all that was written has been read (others may hold the pipes) */
    if (!done) {
      int st;
      for (pid_t w; (w = waitpid(-1, &st, WNOHANG)) > 0;)
        if (w == pid) {
          status = st;
          done = 1;
        }
    }
  }
  unsigned char b[4] = {(unsigned char)status, (unsigned char)(status >> 8), 0, 0};
  frame('X', b, 4);
  power_off();
}
