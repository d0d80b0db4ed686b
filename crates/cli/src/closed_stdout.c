/* Notes whether the process was started with standard output closed. Rust opens /dev/null in its place before `main`, and
   from then on nobody can tell the two apart. Read by `output/results.rs`. */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((constructor)) static void note_closed_stdout(void) {
    char process[24];
    if (fcntl(STDOUT_FILENO, F_GETFD) == -1) {
        /* With the process id, because children inherit the variable. */
        snprintf(process, sizeof process, "%ld", (long)getpid());
        setenv("STDOUT_CLOSED_IN_PROCESS", process, 1);
    }
}
