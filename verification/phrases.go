package verification

// builtin are expressions of trouble that comes of running at once: connections,
// locks, sessions, rates. Each is a whole message of its source, not a word, so
// that counters ("deadlocks: 0"), settings (deadlock_timeout) and names
// (rate-limited-feed) are none. They are matched without regard to case.
//
// Sources: the PostgreSQL, MySQL, MariaDB, Oracle, SQL Server and SQLite lists of
// errors, RFC 6585 and the messages of common clients and pools.
var builtin = []string{
	// No connection left.
	`\bsorry, too many clients already\b`,
	`\btoo many connections\b`,
	`\bremaining connection slots are reserved\b`,
	`\btoo many active connections\b`,
	`\bno more connections allowed\b`,
	`\b(?:connection|session|client) pool\b.{0,80}\b(?:exhausted|timed out|timeout|is full)\b`,
	`\b(?:QueuePool|pool) limit of (?:size )?\d+\b.{0,40}\breached\b`,
	`\b(?:timed out|timeout) (?:while )?(?:waiting for|acquiring|getting|obtaining) an? (?:idle |free )?connection\b`,
	`\bmax(?:imum)? (?:number of )?(?:client )?(?:connections|sessions) (?:limit )?(?:reached|exceeded)\b`,
	`\bhas exceeded the 'max_user_connections' resource\b`,
	`\b(?:ORA-00018|ORA-00020|ORA-02391|ORA-12516|ORA-12519|ORA-12520)\b`,
	// Locks.
	`\bdeadlock detected\b`,
	`\bdeadlock found when trying to get lock\b`,
	`\bwas deadlocked on\b.{0,80}\bresources\b`,
	`\block wait timeout exceeded\b`,
	`\bcanceling statement due to lock timeout\b`,
	`\block request time ?out period exceeded\b`,
	`\bcould not (?:obtain|acquire|get) (?:an? |the )?(?:\w+ )?lock\b`,
	`\b(?:unable|failed) to (?:obtain|acquire|get) (?:an? |the )?(?:\w+ )?lock\b`,
	`\bcould not serialize access\b`,
	`\bdatabase (?:table )?is locked\b`,
	`\b(?:ORA-00054|ORA-00060|ORA-08177|ORA-30006)\b`,
	`\bSQLSTATE(?:\[| |: ?|=)\(?(?:40001|40P01|53300|55P03)\b`,
	`\bresource temporarily unavailable\b`,
	`\btext file busy\b`,
	// Sessions and logins.
	`\binvalid session\b`,
	`\bsession\b.{0,60}\b(?:has expired|was invalidated|has been invalidated|is no longer valid|was terminated by another login)\b`,
	`\bsession (?:expired|invalidated)\b`,
	`\blogged in (?:from|at|on) another (?:location|device|session)\b`,
	`\b(?:concurrent|simultaneous) (?:session|login|connection)s? (?:limit|not allowed|are not allowed|is not allowed|exceeded)\b`,
	// Rates.
	`\bHTTP(?:/\d(?:\.\d)?)?["']?[ :=]+(?:status |error |code )?429\b`,
	`\bstatus(?:[ _-]?code)?["']?(?: is)?[ :=]+429\b`,
	`\btoo many requests\b`,
	`\brate limit(?:ed)? (?:was |is |has been )?(?:exceeded|reached|hit)\b`,
	`\brate exceeded\b`,
	`\b(?:ThrottlingException|RequestLimitExceeded|ProvisionedThroughputExceededException|TooManyRequestsException)\b`,
}

// denied is what may stand right before a built-in phrase when a line says that
// there was none: "no deadlock detected", "0 database is locked errors".
const denied = `(?i)(?:\b(?:no|zero|without|without any|without a|never|not a single)|(?:^|[^\w.])0)\s+["']?$`

// counted is what may stand right behind one when a line says how often: never.
// "too many connections: 0", "rate limit exceeded = 0 times".
const counted = `(?i)^(?: (?:errors?|failures?|count|events?|responses?))?["']?\s*[:=]\s*(?:0|none|no)(?:\s|[,;.)}\]]|$)`

// quoting are lines that show a setting, a command or a pattern rather than tell
// of an event; built-in phrases are not looked for in them.
var quoting = []string{
	`^\s*\++ `, // a shell's trace (set -x)
	`(?i)^\W*(?:[\w.-]*[_.-])?(?:retry[_-]\w+|(?:ignore|trouble)[_-]?\w*|phrases?|patterns?|regexp?|regular[_-]expressions?|match(?:es)?)["']?\s*(?::|=>?|:=)\s*["'\[(/{]`,
}
