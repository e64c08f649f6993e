package service

import "github.com/lanegate/lanegate"

// settingFilePause + a class's id holds whose word a pause is.
const settingFilePause = "config_file_paused:"

// Whose word counts for a class, as kept under settingFilePause. Absent: the
// config file says nothing.
const (
	pausedByFile = "file"   // the file says paused, and nobody has said otherwise since
	pausedByHand = "person" // the file says paused, but a person paused or resumed the class
)

// filePause brings c's pause in line with what the config file says of it now. The
// file's word counts when it changes; a person's pause or resume outlives reloads
// and restarts:
//
//   - a file that comes to say paused pauses the class;
//   - a file that no longer does resumes it, unless a person paused it, before or
//     since;
//   - a file that says the same as before changes nothing.
//
// What it changes is written into the history, with the file as the actor. The
// caller saves the class.
func (s *Service) filePause(tx ConfigTx, c lanegate.Class, paused bool, o ChangeOptions) (lanegate.Class, error) {
	word, err := tx.Setting(settingFilePause + c.ID)
	if err != nil || paused == (word != "") {
		return c, err
	}
	event := HistoryEvent{Subject: classSubject + c.ID, Actor: o.Actor}
	after := ""
	switch {
	case paused && c.Paused:
		after = pausedByHand
	case paused:
		after, event.Event, event.Reason = pausedByFile, pausedEvent(true), s.configFile()+" says paused"
	case word == pausedByFile && c.Paused:
		event.Event, event.Reason = pausedEvent(false), s.configFile()+" no longer says paused"
	}
	if err := tx.SetSetting(settingFilePause+c.ID, after); err != nil || event.Event == "" {
		return c, err
	}
	c.Paused = paused
	return c, tx.AppendHistory(event)
}

// overrideFilePause makes a person's word about a class's pause count over that of
// the file. It reports whether a pause by the file was in force.
func overrideFilePause(tx ConfigTx, class string) (bool, error) {
	word, err := tx.Setting(settingFilePause + class)
	if err != nil || word != pausedByFile {
		return false, err
	}
	return true, tx.SetSetting(settingFilePause+class, pausedByHand)
}
